/* NVML as far as this library touches it: our own minimal declarations. */
#ifndef VGPU_SHIM_NVML_ABI_H
#define VGPU_SHIM_NVML_ABI_H

typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned int gpu, memory; /* percent */
} nvmlUtilization_t;

typedef struct {
    unsigned int pid;
    unsigned long long used_bytes; /* all ones = not known */
    unsigned int gpu_instance, compute_instance;
} nvmlProcessInfo_t; /* v2 and v3 */

typedef struct {
    unsigned int pid;
    unsigned long long used_bytes;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned long long time_us;
    unsigned int pid;
    unsigned int sm, memory, encoder, decoder, jpeg, optical_flow;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
    unsigned int version;
    unsigned int count;
    unsigned long long since_us;
    nvmlProcessUtilizationInfo_v1_t *samples;
} nvmlProcessesUtilizationInfo_t;

typedef struct {
    unsigned int pid;
    unsigned long long time_us;
    unsigned int sm, memory, encoder, decoder; /* percent */
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned int pid;
    unsigned long long used_bytes;
    unsigned int gpu_instance, compute_instance;
    unsigned long long protected_bytes;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned int version;
    unsigned int mode; /* 0 = compute */
    unsigned int count;
    nvmlProcessDetail_v1_t *processes;
} nvmlProcessDetailList_v1_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_MEMORY = 20,
};

_Static_assert(sizeof(nvmlMemory_v2_t) == 40, "nvml memory v2");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "nvml process info");
_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "nvml process info v1");
_Static_assert(sizeof(nvmlProcessUtilizationInfo_v1_t) == 40, "nvml process utilisation info");
_Static_assert(sizeof(nvmlProcessesUtilizationInfo_t) == 24, "nvml utilisation of processes");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "nvml process detail");
_Static_assert(sizeof(nvmlProcessDetailList_v1_t) == 24, "nvml process details");
_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "nvml process utilisation");

#endif
