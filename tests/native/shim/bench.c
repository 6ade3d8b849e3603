/* What an allocation and its release cost, in nanoseconds: run with and without the
 * library. Usage: bench PAIRS; prints JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int cuInit(unsigned int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, unsigned long);
int cuMemFree_v2(unsigned long long);

int main(int argc, char **argv) {
    long pairs = argc > 1 ? atol(argv[1]) : 10000;
    void *ctx;
    unsigned long long ptr;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx)) return 1;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (long i = 0; i < pairs; i++)
        if (cuMemAlloc_v2(&ptr, 2 << 20) || cuMemFree_v2(ptr)) return 2;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec);
    printf("{\"pairs\": %ld, \"ns_per_pair\": %.0f}\n", pairs, ns / (double)pairs);
    return 0;
}
