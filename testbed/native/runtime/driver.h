/* The driver calls that the runtime library makes, one table.
 *
 * DRIVER_CALLS(X): X(name, version, (parameters)). `version` is the CUDA version at
 * which the ABI with these parameters appeared: cuGetProcAddress returns the variant
 * (_v2, _v3, …) that belongs to it.
 */
#ifndef VGPU_RUNTIME_DRIVER_H
#define VGPU_RUNTIME_DRIVER_H

#include "cudart_types.h"

/* clang-format off */
#define DRIVER_CALLS(X) \
    X(cuInit, 2000, (unsigned int)) \
    X(cuDriverGetVersion, 2020, (int *)) \
    /* devices and contexts */ \
    X(cuDeviceGet, 2000, (CUdevice *, int)) \
    X(cuDeviceGetCount, 2000, (int *)) \
    X(cuDeviceGetName, 2000, (char *, int, CUdevice)) \
    X(cuDeviceGetUuid, 11040, (CUuuid *, CUdevice)) \
    X(cuDeviceTotalMem, 3020, (size_t *, CUdevice)) \
    X(cuDeviceGetAttribute, 2000, (int *, int, CUdevice)) \
    X(cuDeviceGetPCIBusId, 4010, (char *, int, CUdevice)) \
    X(cuDeviceCanAccessPeer, 4000, (int *, CUdevice, CUdevice)) \
    X(cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool *, CUdevice)) \
    X(cuDeviceGetGraphMemAttribute, 11040, (CUdevice, int, void *)) \
    X(cuDeviceSetGraphMemAttribute, 11040, (CUdevice, int, void *)) \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice)) \
    X(cuCtxGetCurrent, 4000, (CUcontext *)) \
    X(cuCtxSetCurrent, 4000, (CUcontext)) \
    X(cuCtxGetDevice, 2000, (CUdevice *)) \
    X(cuCtxSynchronize, 2000, (void)) \
    X(cuCtxGetStreamPriorityRange, 5050, (int *, int *)) \
    X(cuCtxEnablePeerAccess, 4000, (CUcontext, unsigned int)) \
    X(cuProfilerStart, 4000, (void)) \
    X(cuProfilerStop, 4000, (void)) \
    /* memory */ \
    X(cuMemAlloc, 3020, (CUdeviceptr *, size_t)) \
    X(cuMemFree, 3020, (CUdeviceptr)) \
    X(cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream)) \
    X(cuMemFreeAsync, 11020, (CUdeviceptr, CUstream)) \
    X(cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned int)) \
    X(cuMemHostAlloc, 2020, (void **, size_t, unsigned int)) \
    X(cuMemFreeHost, 2000, (void *)) \
    X(cuMemHostRegister, 6050, (void *, size_t, unsigned int)) \
    X(cuMemHostUnregister, 4000, (void *)) \
    X(cuMemGetInfo, 3020, (size_t *, size_t *)) \
    X(cuMemPoolGetAttribute, 11020, (CUmemoryPool, int, void *)) \
    X(cuMemPoolSetAttribute, 11020, (CUmemoryPool, int, void *)) \
    X(cuMemPoolSetAccess, 11020, (CUmemoryPool, const void *, size_t)) \
    X(cuMemPoolTrimTo, 11020, (CUmemoryPool, size_t)) \
    X(cuPointerGetAttributes, 7000, (unsigned int, int *, void **, CUdeviceptr)) \
    X(cuIpcGetMemHandle, 4010, (CUipcHandle *, CUdeviceptr)) \
    X(cuIpcOpenMemHandle, 11000, (CUdeviceptr *, CUipcHandle, unsigned int)) \
    X(cuIpcCloseMemHandle, 4010, (CUdeviceptr)) \
    X(cuIpcGetEventHandle, 4010, (CUipcHandle *, CUevent)) \
    X(cuIpcOpenEventHandle, 4010, (CUevent *, CUipcHandle)) \
    /* copies */ \
    X(cuMemcpy, 4000, (CUdeviceptr, CUdeviceptr, size_t)) \
    X(cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyHtoD, 3020, (CUdeviceptr, const void *, size_t)) \
    X(cuMemcpyDtoH, 3020, (void *, CUdeviceptr, size_t)) \
    X(cuMemcpyDtoD, 3020, (CUdeviceptr, CUdeviceptr, size_t)) \
    X(cuMemcpyHtoDAsync, 3020, (CUdeviceptr, const void *, size_t, CUstream)) \
    X(cuMemcpyDtoHAsync, 3020, (void *, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyDtoDAsync, 3020, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyPeerAsync, 4000, \
      (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)) \
    X(cuMemcpy2DAsync, 3020, (const CUDA_MEMCPY2D *, CUstream)) \
    X(cuMemsetD8, 3020, (CUdeviceptr, unsigned char, size_t)) \
    X(cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, size_t, CUstream)) \
    /* streams and events */ \
    X(cuStreamCreate, 2000, (CUstream *, unsigned int)) \
    X(cuStreamCreateWithPriority, 5050, (CUstream *, unsigned int, int)) \
    X(cuStreamDestroy, 4000, (CUstream)) \
    X(cuStreamGetPriority, 5050, (CUstream, int *)) \
    X(cuStreamQuery, 2000, (CUstream)) \
    X(cuStreamSynchronize, 2000, (CUstream)) \
    X(cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned int)) \
    X(cuStreamAddCallback, 5000, (CUstream, CUstreamCallback, void *, unsigned int)) \
    X(cuLaunchHostFunc, 10000, (CUstream, CUhostFn, void *)) \
    X(cuEventCreate, 2000, (CUevent *, unsigned int)) \
    X(cuEventDestroy, 4000, (CUevent)) \
    X(cuEventQuery, 2000, (CUevent)) \
    X(cuEventRecord, 2000, (CUevent, CUstream)) \
    X(cuEventRecordWithFlags, 11010, (CUevent, CUstream, unsigned int)) \
    X(cuEventSynchronize, 2000, (CUevent)) \
    X(cuEventElapsedTime, 12080, (float *, CUevent, CUevent)) \
    /* capture and graphs */ \
    X(cuStreamIsCapturing, 10000, (CUstream, int *)) \
    X(cuStreamBeginCapture, 10010, (CUstream, int)) \
    X(cuStreamEndCapture, 10000, (CUstream, CUgraph *)) \
    X(cuStreamBeginCaptureToGraph, 12030, \
      (CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int)) \
    X(cuStreamGetCaptureInfo, 12030, \
      (CUstream, int *, uint64_t *, CUgraph *, const CUgraphNode **, const void **, size_t *)) \
    X(cuStreamUpdateCaptureDependencies, 12030, \
      (CUstream, CUgraphNode *, const void *, size_t, unsigned int)) \
    X(cuThreadExchangeStreamCaptureMode, 10010, (int *)) \
    X(cuGraphInstantiateWithFlags, 11040, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(cuGraphLaunch, 10000, (CUgraphExec, CUstream)) \
    X(cuGraphDestroy, 10000, (CUgraph)) \
    X(cuGraphExecDestroy, 10000, (CUgraphExec)) \
    X(cuGraphGetNodes, 10000, (CUgraph, CUgraphNode *, size_t *)) \
    X(cuGraphNodeGetDependencies, 12030, (CUgraphNode, CUgraphNode *, void *, size_t *)) \
    X(cuGraphAddNode, 12030, \
      (CUgraphNode *, CUgraph, const CUgraphNode *, const void *, size_t, \
       struct cudaGraphNodeParams *)) \
    X(cuGraphConditionalHandleCreate, 12030, \
      (CUgraphConditionalHandle *, CUgraph, CUcontext, unsigned int, unsigned int)) \
    X(cuUserObjectCreate, 11030, \
      (CUuserObject *, void *, CUhostFn, unsigned int, unsigned int)) \
    X(cuUserObjectRelease, 11030, (CUuserObject, unsigned int)) \
    X(cuGraphRetainUserObject, 11030, (CUgraph, CUuserObject, unsigned int, unsigned int)) \
    /* code */ \
    X(cuLibraryLoadData, 12000, \
      (CUlibrary *, const void *, void *, void **, unsigned int, void *, void **, unsigned int)) \
    X(cuLibraryLoadFromFile, 12000, \
      (CUlibrary *, const char *, void *, void **, unsigned int, void *, void **, unsigned int)) \
    X(cuLibraryUnload, 12000, (CUlibrary)) \
    X(cuLibraryGetKernel, 12000, (CUkernel *, CUlibrary, const char *)) \
    X(cuLibraryGetKernelCount, 12040, (unsigned int *, CUlibrary)) \
    X(cuLibraryGetGlobal, 12000, (CUdeviceptr *, size_t *, CUlibrary, const char *)) \
    X(cuLibraryGetManaged, 12000, (CUdeviceptr *, size_t *, CUlibrary, const char *)) \
    X(cuLibraryGetUnifiedFunction, 12000, (void **, CUlibrary, const char *)) \
    X(cuKernelGetAttribute, 12000, (int *, int, CUkernel, CUdevice)) \
    X(cuKernelSetAttribute, 12000, (int, int, CUkernel, CUdevice)) \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 7000, \
      (int *, CUfunction, int, size_t, unsigned int)) \
    X(cuLaunchKernel, 4000, \
      (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, \
       unsigned int, unsigned int, CUstream, void **, void **)) \
    X(cuLaunchKernelEx, 11060, (const CUlaunchConfig *, CUfunction, void **, void **)) \
    X(cuLaunchCooperativeKernel, 9000, \
      (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, \
       unsigned int, unsigned int, CUstream, void **))
/* clang-format on */

typedef CUresult (*get_proc_address)(const char *, void **, int, uint64_t, int *);

struct driver {
    get_proc_address get_proc;
#define X(name, version, parameters) CUresult(*name) parameters;
    DRIVER_CALLS(X)
#undef X
};

/* Filled by start(); constant afterwards. */
extern struct driver driver;

#endif
