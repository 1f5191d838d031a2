// SPDX-License-Identifier: Apache-2.0
/*
 * Prints the first numbers of a seed's disturbance: exponents, then delays, times between points and times
 * without CPU, in nanoseconds.
 *   disturb SEED COUNT
 */
#include <stdio.h>
#include <stdlib.h>

#include "../disturb.h"

int main(int argc, char **argv)
{
	struct lab_disturb d;
	int n, count;

	if (argc != 3)
		return 2;
	lab_disturb_init(&d, strtoull(argv[1], NULL, 10));
	count = atoi(argv[2]);
	printf("%u %u\n", d.late, d.apart);
	for (n = 0; n < count; n++) {
		unsigned long long late = lab_disturb_late(&d);
		unsigned long long away = lab_disturb_away(&d);

		printf("%llu %llu %llu\n", late, away, (unsigned long long)lab_disturb_apart(&d));
	}
	return 0;
}
