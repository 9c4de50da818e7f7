/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the programs of this folder check with. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(condition)                                                                            \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);   \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

/* Seconds of a clock that only goes forward. */
static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}
