// SPDX-License-Identifier: Apache-2.0
/*
 * Prints the first numbers of a seed's disturbance: exponents, then delays, times without CPU, times between
 * points, and times from a request's end and from a wake-up to a point, in nanoseconds.
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
	printf("%u %u\n", d.late, d.soon);
	for (n = 0; n < count; n++) {
		unsigned long long late = lab_disturb_late(&d);
		unsigned long long away = lab_disturb_away(&d);
		unsigned long long apart = lab_disturb_apart(&d);
		unsigned long long soon = lab_disturb_soon(&d);
		unsigned long long woken = lab_disturb_woken(&d);

		printf("%llu %llu %llu %llu %llu\n", late, away, apart, soon, woken);
	}
	return 0;
}
