/* Prints the interval that each sample is taken to be of, us, for gaps since the sample before that
 * are given as arguments, us. */
#include <stdio.h>
#include <stdlib.h>

#include "nvml_probe.h"

int main(int count, char **gaps) {
    int64_t period = 0;
    for (int i = 1; i < count; i++)
        printf("%lld\n", (long long)(vgpu_nvml_interval(atoll(gaps[i]) * 1000, &period) / 1000));
    return 0;
}
