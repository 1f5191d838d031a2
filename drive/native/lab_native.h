/* SPDX-License-Identifier: GPL-2.0 */
/* Between lab_disk.c, lab_native.c and lab_user.c, which is compiled with the C library's headers. */
#ifndef LAB_NATIVE_H
#define LAB_NATIVE_H

void *lab_user_map(const char *path, int shared, unsigned long long *size);
void *lab_native_region(unsigned long long *size);
void *lab_native_base(unsigned long long *size);

#endif
