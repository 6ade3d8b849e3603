/* The one table of intercepted symbols.
 *
 * HOOK(symbol, base, since, stream, parameters): `symbol` is the exported name,
 * `base` the name under which cuGetProcAddress knows it, `since` the CUDA version
 * (1000 * major + 10 * minor) of this ABI, `stream` whether the entry belongs to
 * the legacy or to the per-thread default stream. USE lists what we only call.
 *
 * Deliberately not hooked (reasons in tests/data/cuda_not_hooked.txt): host memory,
 * imports and IPC opens (the exporter is charged), modules, peer copies.
 */
#ifndef VGPU_SHIM_HOOKS_H
#define VGPU_SHIM_HOOKS_H

#include "cuda_abi.h"
#include "nvml_abi.h"

#define VGPU_CUDA_HOOKS(HOOK)                                                                      \
    HOOK(cuGetProcAddress, cuGetProcAddress, 11030, ANY,                                           \
         (const char *name, void **pfn, int version, uint64_t flags))                              \
    HOOK(cuGetProcAddress_v2, cuGetProcAddress, 12000, ANY,                                        \
         (const char *name, void **pfn, int version, uint64_t flags, int *found))                  \
    HOOK(cuInit, cuInit, 2000, ANY, (unsigned int flags))                                          \
    HOOK(cuDeviceTotalMem, cuDeviceTotalMem, 2000, ANY, (unsigned int *bytes, CUdevice dev))       \
    HOOK(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, ANY, (size_t *bytes, CUdevice dev))          \
    HOOK(cuMemGetInfo, cuMemGetInfo, 2000, ANY, (unsigned int *free, unsigned int *total))         \
    HOOK(cuMemGetInfo_v2, cuMemGetInfo, 3020, ANY, (size_t *free, size_t *total))                  \
    /* contexts */                                                                                 \
    HOOK(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, ANY,                            \
         (CUcontext *ctx, CUdevice dev))                                                           \
    HOOK(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, ANY, (CUdevice dev))          \
    HOOK(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, ANY, (CUdevice dev))      \
    HOOK(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, ANY, (CUdevice dev))              \
    HOOK(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, ANY, (CUdevice dev))          \
    HOOK(cuCtxCreate, cuCtxCreate, 2000, ANY, (CUcontext *ctx, unsigned int flags, CUdevice dev))  \
    HOOK(cuCtxCreate_v2, cuCtxCreate, 3020, ANY,                                                   \
         (CUcontext *ctx, unsigned int flags, CUdevice dev))                                       \
    HOOK(cuCtxCreate_v3, cuCtxCreate, 11040, ANY,                                                  \
         (CUcontext *ctx, void *affinity, int count, unsigned int flags, CUdevice dev))            \
    HOOK(cuCtxCreate_v4, cuCtxCreate, 12050, ANY,                                                  \
         (CUcontext *ctx, void *params, unsigned int flags, CUdevice dev))                         \
    HOOK(cuCtxAttach, cuCtxAttach, 2000, ANY, (CUcontext *ctx, unsigned int flags))                \
    HOOK(cuCtxDetach, cuCtxDetach, 2000, ANY, (CUcontext ctx))                                     \
    HOOK(cuCtxDestroy, cuCtxDestroy, 2000, ANY, (CUcontext ctx))                                   \
    HOOK(cuCtxDestroy_v2, cuCtxDestroy, 4000, ANY, (CUcontext ctx))                                \
    /* plain memory */                                                                             \
    HOOK(cuMemAlloc, cuMemAlloc, 2000, ANY, (CUdeviceptr_v1 *ptr, unsigned int bytes))             \
    HOOK(cuMemAlloc_v2, cuMemAlloc, 3020, ANY, (CUdeviceptr *ptr, size_t bytes))                   \
    HOOK(cuMemAllocPitch, cuMemAllocPitch, 2000, ANY,                                              \
         (CUdeviceptr_v1 *ptr, unsigned int *pitch, unsigned int width, unsigned int height,       \
          unsigned int element))                                                                   \
    HOOK(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, ANY,                                           \
         (CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element))     \
    HOOK(cuMemAllocManaged, cuMemAllocManaged, 6000, ANY,                                          \
         (CUdeviceptr *ptr, size_t bytes, unsigned int flags))                                     \
    HOOK(cuMemFree, cuMemFree, 2000, ANY, (CUdeviceptr_v1 ptr))                                    \
    HOOK(cuMemFree_v2, cuMemFree, 3020, ANY, (CUdeviceptr ptr))                                    \
    /* stream-ordered memory */                                                                    \
    HOOK(cuMemAllocAsync, cuMemAllocAsync, 11020, LEGACY,                                          \
         (CUdeviceptr *ptr, size_t bytes, CUstream stream))                                        \
    HOOK(cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, PER_THREAD,                                 \
         (CUdeviceptr *ptr, size_t bytes, CUstream stream))                                        \
    HOOK(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, LEGACY,                          \
         (CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream))                     \
    HOOK(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, PER_THREAD,                 \
         (CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream))                     \
    HOOK(cuMemFreeAsync, cuMemFreeAsync, 11020, LEGACY, (CUdeviceptr ptr, CUstream stream))        \
    HOOK(cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, PER_THREAD,                                   \
         (CUdeviceptr ptr, CUstream stream))                                                       \
    HOOK(cuMemPoolCreate, cuMemPoolCreate, 11020, ANY,                                             \
         (CUmemoryPool *pool, const CUmemPoolProps *props))                                        \
    HOOK(cuMemPoolDestroy, cuMemPoolDestroy, 11020, ANY, (CUmemoryPool pool))                      \
    HOOK(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, ANY, (CUmemoryPool pool, size_t keep))           \
    HOOK(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, ANY,                                 \
         (CUmemoryPool pool, int attribute, void *value))                                          \
    HOOK(cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, 11020, ANY,       \
         (CUmemoryPool *pool, void *handle, int type, unsigned long long flags))                   \
    HOOK(cuStreamSynchronize, cuStreamSynchronize, 2000, LEGACY, (CUstream stream))                \
    HOOK(cuStreamSynchronize_ptsz, cuStreamSynchronize, 7000, PER_THREAD, (CUstream stream))       \
    HOOK(cuCtxSynchronize, cuCtxSynchronize, 2000, ANY, (void))                                    \
    HOOK(cuCtxSynchronize_v2, cuCtxSynchronize, 13000, ANY, (CUcontext ctx))                       \
    /* physical memory and its mappings */                                                         \
    HOOK(cuMemCreate, cuMemCreate, 10020, ANY,                                                     \
         (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *prop,    \
          unsigned long long flags))                                                               \
    HOOK(cuMemRelease, cuMemRelease, 10020, ANY, (CUmemGenericAllocationHandle handle))            \
    HOOK(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, ANY,                     \
         (CUmemGenericAllocationHandle * handle, void *addr))                                      \
    HOOK(cuMemMap, cuMemMap, 10020, ANY,                                                           \
         (CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,       \
          unsigned long long flags))                                                               \
    HOOK(cuMemUnmap, cuMemUnmap, 10020, ANY, (CUdeviceptr ptr, size_t bytes))                      \
    /* arrays */                                                                                   \
    HOOK(cuArrayCreate, cuArrayCreate, 2000, ANY,                                                  \
         (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc))                                  \
    HOOK(cuArrayCreate_v2, cuArrayCreate, 3020, ANY,                                               \
         (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v2 *desc))                                  \
    HOOK(cuArray3DCreate, cuArray3DCreate, 2000, ANY,                                              \
         (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc))                                \
    HOOK(cuArray3DCreate_v2, cuArray3DCreate, 3020, ANY,                                           \
         (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *desc))                                \
    HOOK(cuArrayDestroy, cuArrayDestroy, 2000, ANY, (CUarray array))                               \
    HOOK(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, ANY,                                \
         (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *desc,                        \
          unsigned int levels))                                                                    \
    HOOK(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, ANY, (CUmipmappedArray array))    \
    /* graphs: memory nodes */                                                                     \
    HOOK(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, 11040, ANY,                               \
         (CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t count,                \
          CUDA_MEM_ALLOC_NODE_PARAMS *params))                                                     \
    HOOK(cuGraphInstantiate, cuGraphInstantiate, 10000, ANY,                                       \
         (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t bytes))         \
    HOOK(cuGraphInstantiate_v2, cuGraphInstantiate, 11000, ANY,                                    \
         (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t bytes))         \
    HOOK(cuGraphInstantiateWithFlags, cuGraphInstantiate, 12000, ANY,                              \
         (CUgraphExec * exec, CUgraph graph, unsigned long long flags))                            \
    HOOK(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, LEGACY,                \
         (CUgraphExec * exec, CUgraph graph, void *params))                                        \
    HOOK(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams, 12000, PER_THREAD,       \
         (CUgraphExec * exec, CUgraph graph, void *params))                                        \
    HOOK(cuGraphUpload, cuGraphUpload, 11010, LEGACY, (CUgraphExec exec, CUstream stream))         \
    HOOK(cuGraphUpload_ptsz, cuGraphUpload, 11010, PER_THREAD,                                     \
         (CUgraphExec exec, CUstream stream))                                                      \
    HOOK(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, ANY, (CUdevice dev))                   \
    HOOK(cuGraphAddNode, cuGraphAddNode, 12020, ANY,                                               \
         (CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, size_t count,                \
          CUgraphNodeParams *params))                                                              \
    HOOK(cuGraphAddNode_v2, cuGraphAddNode, 12030, ANY,                                            \
         (CUgraphNode * node, CUgraph graph, const CUgraphNode *deps, const void *edges,           \
          size_t count, CUgraphNodeParams *params))                                                \
    /* launches */                                                                                 \
    HOOK(cuLaunchKernel, cuLaunchKernel, 4000, LEGACY,                                             \
         (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,        \
          unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,                  \
          void **parameters, void **extra))                                                        \
    HOOK(cuLaunchKernel_ptsz, cuLaunchKernel, 7000, PER_THREAD,                                    \
         (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,        \
          unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,                  \
          void **parameters, void **extra))                                                        \
    HOOK(cuLaunchKernelEx, cuLaunchKernelEx, 11060, LEGACY,                                        \
         (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra))            \
    HOOK(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, 11060, PER_THREAD,                               \
         (const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra))            \
    HOOK(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, LEGACY,                       \
         (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,        \
          unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,                  \
          void **parameters))                                                                      \
    HOOK(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, 9000, PER_THREAD,              \
         (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,        \
          unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,                  \
          void **parameters))                                                                      \
    HOOK(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice, 9000, ANY,    \
         (CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags))                       \
    HOOK(cuLaunch, cuLaunch, 2000, ANY, (CUfunction f))                                            \
    HOOK(cuLaunchGrid, cuLaunchGrid, 2000, ANY, (CUfunction f, int width, int height))             \
    HOOK(cuLaunchGridAsync, cuLaunchGridAsync, 2000, ANY,                                          \
         (CUfunction f, int width, int height, CUstream stream))                                   \
    HOOK(cuGraphLaunch, cuGraphLaunch, 10000, LEGACY, (CUgraphExec exec, CUstream stream))         \
    HOOK(cuGraphLaunch_ptsz, cuGraphLaunch, 10000, PER_THREAD,                                     \
         (CUgraphExec exec, CUstream stream))                                                      \
    /* graphs that change */                                                                       \
    HOOK(cuGraphExecDestroy, cuGraphExecDestroy, 10000, ANY, (CUgraphExec exec))                   \
    HOOK(cuGraphExecUpdate, cuGraphExecUpdate, 10020, ANY,                                         \
         (CUgraphExec exec, CUgraph graph, CUgraphNode *node, int *result))                        \
    HOOK(cuGraphExecUpdate_v2, cuGraphExecUpdate, 12000, ANY,                                      \
         (CUgraphExec exec, CUgraph graph, void *result))                                          \
    HOOK(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams, 10010, ANY,               \
         (CUgraphExec exec, CUgraphNode node, const void *params))                                 \
    HOOK(cuGraphExecKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams, 12000, ANY,            \
         (CUgraphExec exec, CUgraphNode node, const void *params))                                 \
    HOOK(cuGraphExecMemcpyNodeSetParams, cuGraphExecMemcpyNodeSetParams, 10020, ANY,               \
         (CUgraphExec exec, CUgraphNode node, const void *params, CUcontext ctx))                  \
    HOOK(cuGraphExecMemsetNodeSetParams, cuGraphExecMemsetNodeSetParams, 10020, ANY,               \
         (CUgraphExec exec, CUgraphNode node, const void *params, CUcontext ctx))                  \
    HOOK(cuGraphExecChildGraphNodeSetParams, cuGraphExecChildGraphNodeSetParams, 11010, ANY,       \
         (CUgraphExec exec, CUgraphNode node, CUgraph child))                                      \
    HOOK(cuGraphExecNodeSetParams, cuGraphExecNodeSetParams, 12020, ANY,                           \
         (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params))                          \
    HOOK(cuGraphNodeSetEnabled, cuGraphNodeSetEnabled, 11060, ANY,                                 \
         (CUgraphExec exec, CUgraphNode node, unsigned int enabled))                               \
    /* streams: capture, end, what waits for them */                                               \
    HOOK(cuStreamBeginCapture, cuStreamBeginCapture, 10000, LEGACY, (CUstream stream))             \
    HOOK(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, 10000, PER_THREAD, (CUstream stream))    \
    HOOK(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010, LEGACY,                             \
         (CUstream stream, int mode))                                                              \
    HOOK(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture, 10010, PER_THREAD,                    \
         (CUstream stream, int mode))                                                              \
    HOOK(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030, LEGACY,                  \
         (CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t       \
          count, int mode))                                                                        \
    HOOK(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph, 12030, PER_THREAD,         \
         (CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t       \
          count, int mode))                                                                        \
    HOOK(cuStreamEndCapture, cuStreamEndCapture, 10000, LEGACY,                                    \
         (CUstream stream, CUgraph * graph))                                                       \
    HOOK(cuStreamEndCapture_ptsz, cuStreamEndCapture, 10000, PER_THREAD,                           \
         (CUstream stream, CUgraph * graph))                                                       \
    HOOK(cuStreamCreate, cuStreamCreate, 2000, ANY, (CUstream * stream, unsigned int flags))       \
    HOOK(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, ANY,                        \
         (CUstream * stream, unsigned int flags, int priority))                                    \
    HOOK(cuStreamDestroy, cuStreamDestroy, 2000, ANY, (CUstream stream))                           \
    HOOK(cuStreamDestroy_v2, cuStreamDestroy, 4000, ANY, (CUstream stream))                        \
    HOOK(cuEventSynchronize, cuEventSynchronize, 2000, ANY, (CUevent event))                       \
    HOOK(cuLaunchHostFunc, cuLaunchHostFunc, 10000, LEGACY,                                        \
         (CUstream stream, CUhostFn * fn, void *data))                                             \
    HOOK(cuLaunchHostFunc_ptsz, cuLaunchHostFunc, 10000, PER_THREAD,                               \
         (CUstream stream, CUhostFn * fn, void *data))                                             \
    HOOK(cuLaunchHostFunc_v2, cuLaunchHostFunc, 13010, LEGACY,                                     \
         (CUstream stream, CUhostFn * fn, void *data, unsigned int mode))                          \
    HOOK(cuLaunchHostFunc_v2_ptsz, cuLaunchHostFunc, 13010, PER_THREAD,                            \
         (CUstream stream, CUhostFn * fn, void *data, unsigned int mode))                          \
    HOOK(cuStreamAddCallback, cuStreamAddCallback, 5000, LEGACY,                                   \
         (CUstream stream, CUstreamCallback * fn, void *data, unsigned int flags))                 \
    HOOK(cuStreamAddCallback_ptsz, cuStreamAddCallback, 7000, PER_THREAD,                          \
         (CUstream stream, CUstreamCallback * fn, void *data, unsigned int flags))                 \
    /* large fills and copies on the device */                                                     \
    HOOK(cuMemsetD8_v2, cuMemsetD8, 3020, LEGACY,                                                  \
         (CUdeviceptr ptr, unsigned char value, size_t n))                                         \
    HOOK(cuMemsetD8_v2_ptds, cuMemsetD8, 7000, PER_THREAD,                                         \
         (CUdeviceptr ptr, unsigned char value, size_t n))                                         \
    HOOK(cuMemsetD8Async, cuMemsetD8Async, 3020, LEGACY,                                           \
         (CUdeviceptr ptr, unsigned char value, size_t n, CUstream stream))                        \
    HOOK(cuMemsetD8Async_ptsz, cuMemsetD8Async, 7000, PER_THREAD,                                  \
         (CUdeviceptr ptr, unsigned char value, size_t n, CUstream stream))                        \
    HOOK(cuMemsetD2D8_v2, cuMemsetD2D8, 3020, LEGACY,                                              \
         (CUdeviceptr ptr, size_t pitch, unsigned char value, size_t width, size_t height))        \
    HOOK(cuMemsetD2D8_v2_ptds, cuMemsetD2D8, 7000, PER_THREAD,                                     \
         (CUdeviceptr ptr, size_t pitch, unsigned char value, size_t width, size_t height))        \
    HOOK(cuMemsetD2D8Async, cuMemsetD2D8Async, 3020, LEGACY,                                       \
         (CUdeviceptr ptr, size_t pitch, unsigned char value, size_t width, size_t height,         \
          CUstream stream))                                                                        \
    HOOK(cuMemsetD2D8Async_ptsz, cuMemsetD2D8Async, 7000, PER_THREAD,                              \
         (CUdeviceptr ptr, size_t pitch, unsigned char value, size_t width, size_t height,         \
          CUstream stream))                                                                        \
    HOOK(cuMemsetD16_v2, cuMemsetD16, 3020, LEGACY,                                                \
         (CUdeviceptr ptr, unsigned short value, size_t n))                                        \
    HOOK(cuMemsetD16_v2_ptds, cuMemsetD16, 7000, PER_THREAD,                                       \
         (CUdeviceptr ptr, unsigned short value, size_t n))                                        \
    HOOK(cuMemsetD16Async, cuMemsetD16Async, 3020, LEGACY,                                         \
         (CUdeviceptr ptr, unsigned short value, size_t n, CUstream stream))                       \
    HOOK(cuMemsetD16Async_ptsz, cuMemsetD16Async, 7000, PER_THREAD,                                \
         (CUdeviceptr ptr, unsigned short value, size_t n, CUstream stream))                       \
    HOOK(cuMemsetD2D16_v2, cuMemsetD2D16, 3020, LEGACY,                                            \
         (CUdeviceptr ptr, size_t pitch, unsigned short value, size_t width, size_t height))       \
    HOOK(cuMemsetD2D16_v2_ptds, cuMemsetD2D16, 7000, PER_THREAD,                                   \
         (CUdeviceptr ptr, size_t pitch, unsigned short value, size_t width, size_t height))       \
    HOOK(cuMemsetD2D16Async, cuMemsetD2D16Async, 3020, LEGACY,                                     \
         (CUdeviceptr ptr, size_t pitch, unsigned short value, size_t width, size_t height,        \
          CUstream stream))                                                                        \
    HOOK(cuMemsetD2D16Async_ptsz, cuMemsetD2D16Async, 7000, PER_THREAD,                            \
         (CUdeviceptr ptr, size_t pitch, unsigned short value, size_t width, size_t height,        \
          CUstream stream))                                                                        \
    HOOK(cuMemsetD32_v2, cuMemsetD32, 3020, LEGACY,                                                \
         (CUdeviceptr ptr, unsigned int value, size_t n))                                          \
    HOOK(cuMemsetD32_v2_ptds, cuMemsetD32, 7000, PER_THREAD,                                       \
         (CUdeviceptr ptr, unsigned int value, size_t n))                                          \
    HOOK(cuMemsetD32Async, cuMemsetD32Async, 3020, LEGACY,                                         \
         (CUdeviceptr ptr, unsigned int value, size_t n, CUstream stream))                         \
    HOOK(cuMemsetD32Async_ptsz, cuMemsetD32Async, 7000, PER_THREAD,                                \
         (CUdeviceptr ptr, unsigned int value, size_t n, CUstream stream))                         \
    HOOK(cuMemsetD2D32_v2, cuMemsetD2D32, 3020, LEGACY,                                            \
         (CUdeviceptr ptr, size_t pitch, unsigned int value, size_t width, size_t height))         \
    HOOK(cuMemsetD2D32_v2_ptds, cuMemsetD2D32, 7000, PER_THREAD,                                   \
         (CUdeviceptr ptr, size_t pitch, unsigned int value, size_t width, size_t height))         \
    HOOK(cuMemsetD2D32Async, cuMemsetD2D32Async, 3020, LEGACY,                                     \
         (CUdeviceptr ptr, size_t pitch, unsigned int value, size_t width, size_t height,          \
          CUstream stream))                                                                        \
    HOOK(cuMemsetD2D32Async_ptsz, cuMemsetD2D32Async, 7000, PER_THREAD,                            \
         (CUdeviceptr ptr, size_t pitch, unsigned int value, size_t width, size_t height,          \
          CUstream stream))                                                                        \
    HOOK(cuMemcpyDtoD_v2, cuMemcpyDtoD, 3020, LEGACY,                                              \
         (CUdeviceptr to, CUdeviceptr from, size_t bytes))                                         \
    HOOK(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD, 7000, PER_THREAD,                                     \
         (CUdeviceptr to, CUdeviceptr from, size_t bytes))                                         \
    HOOK(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, 3020, LEGACY,                                    \
         (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                        \
    HOOK(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync, 7000, PER_THREAD,                           \
         (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                        \
    HOOK(cuMemcpy, cuMemcpy, 4000, LEGACY, (CUdeviceptr to, CUdeviceptr from, size_t bytes))       \
    HOOK(cuMemcpy_ptds, cuMemcpy, 7000, PER_THREAD,                                                \
         (CUdeviceptr to, CUdeviceptr from, size_t bytes))                                         \
    HOOK(cuMemcpyAsync, cuMemcpyAsync, 4000, LEGACY,                                               \
         (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                        \
    HOOK(cuMemcpyAsync_ptsz, cuMemcpyAsync, 7000, PER_THREAD,                                      \
         (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                        \
    HOOK(cuMemcpy2D_v2, cuMemcpy2D, 3020, LEGACY,                                                  \
         (const CUDA_MEMCPY2D *plane))                                                             \
    HOOK(cuMemcpy2D_v2_ptds, cuMemcpy2D, 7000, PER_THREAD,                                         \
         (const CUDA_MEMCPY2D *plane))                                                             \
    HOOK(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, 3020, LEGACY,                                \
         (const CUDA_MEMCPY2D *plane))                                                             \
    HOOK(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned, 7000, PER_THREAD,                       \
         (const CUDA_MEMCPY2D *plane))                                                             \
    HOOK(cuMemcpy2DAsync_v2, cuMemcpy2DAsync, 3020, LEGACY,                                        \
         (const CUDA_MEMCPY2D *plane, CUstream stream))                                            \
    HOOK(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync, 7000, PER_THREAD,                               \
         (const CUDA_MEMCPY2D *plane, CUstream stream))                                            \
    HOOK(cuMemcpy3D_v2, cuMemcpy3D, 3020, LEGACY,                                                  \
         (const CUDA_MEMCPY3D *block))                                                             \
    HOOK(cuMemcpy3D_v2_ptds, cuMemcpy3D, 7000, PER_THREAD,                                         \
         (const CUDA_MEMCPY3D *block))                                                             \
    HOOK(cuMemcpy3DAsync_v2, cuMemcpy3DAsync, 3020, LEGACY,                                        \
         (const CUDA_MEMCPY3D *block, CUstream stream))                                            \
    HOOK(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync, 7000, PER_THREAD,                               \
         (const CUDA_MEMCPY3D *block, CUstream stream))                                            \
    HOOK(cuMemcpyAtoA_v2, cuMemcpyAtoA, 3020, LEGACY,                                              \
         (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes))           \
    HOOK(cuMemcpyAtoA_v2_ptds, cuMemcpyAtoA, 7000, PER_THREAD,                                     \
         (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes))           \
    HOOK(cuMemcpyAtoD_v2, cuMemcpyAtoD, 3020, LEGACY,                                              \
         (CUdeviceptr to, CUarray from, size_t offset, size_t bytes))                              \
    HOOK(cuMemcpyAtoD_v2_ptds, cuMemcpyAtoD, 7000, PER_THREAD,                                     \
         (CUdeviceptr to, CUarray from, size_t offset, size_t bytes))                              \
    HOOK(cuMemcpyDtoA_v2, cuMemcpyDtoA, 3020, LEGACY,                                              \
         (CUarray to, size_t offset, CUdeviceptr from, size_t bytes))                              \
    HOOK(cuMemcpyDtoA_v2_ptds, cuMemcpyDtoA, 7000, PER_THREAD,                                     \
         (CUarray to, size_t offset, CUdeviceptr from, size_t bytes))                              \
    HOOK(cuMemcpyBatchAsync, cuMemcpyBatchAsync, 12080, LEGACY,                                    \
         (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,       \
          size_t *indexes, size_t attribute_count, size_t *failed, CUstream stream))               \
    HOOK(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync, 13000, LEGACY,                                 \
         (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,       \
          size_t *indexes, size_t attribute_count, CUstream stream))                               \
    HOOK(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync, 12080, LEGACY,                                \
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,    \
          CUstream stream))                                                                        \
    HOOK(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync, 13000, LEGACY,                             \
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream))  \
    HOOK(cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync, 13020, LEGACY,                  \
         (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, CUstream stream))      \
    HOOK(cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync, 13020, LEGACY,              \
         (CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream stream))                  \
    HOOK(cuMemcpyBatchAsync_ptsz, cuMemcpyBatchAsync, 12080, PER_THREAD,                           \
         (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,       \
          size_t *indexes, size_t attribute_count, size_t *failed, CUstream stream))               \
    HOOK(cuMemcpyBatchAsync_v2_ptsz, cuMemcpyBatchAsync, 13000, PER_THREAD,                        \
         (CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, void *attributes,       \
          size_t *indexes, size_t attribute_count, CUstream stream))                               \
    HOOK(cuMemcpy3DBatchAsync_ptsz, cuMemcpy3DBatchAsync, 12080, PER_THREAD,                       \
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,    \
          CUstream stream))                                                                        \
    HOOK(cuMemcpy3DBatchAsync_v2_ptsz, cuMemcpy3DBatchAsync, 13000, PER_THREAD,                    \
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream))  \
    HOOK(cuMemcpyWithAttributesAsync_ptsz, cuMemcpyWithAttributesAsync, 13020, PER_THREAD,         \
         (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, CUstream stream))      \
    HOOK(cuMemcpy3DWithAttributesAsync_ptsz, cuMemcpy3DWithAttributesAsync, 13020, PER_THREAD,     \
         (CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream stream))

#define VGPU_NVML_HOOKS(HOOK)                                                                      \
    HOOK(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t * memory))                    \
    HOOK(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t * memory))              \
    HOOK(nvmlDeviceGetComputeRunningProcesses,                                                     \
         (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos))                  \
    HOOK(nvmlDeviceGetComputeRunningProcesses_v2,                                                  \
         (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos))                     \
    HOOK(nvmlDeviceGetComputeRunningProcesses_v3,                                                  \
         (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos))                     \
    HOOK(nvmlDeviceGetGraphicsRunningProcesses,                                                    \
         (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos))                  \
    HOOK(nvmlDeviceGetGraphicsRunningProcesses_v2,                                                 \
         (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos))                     \
    HOOK(nvmlDeviceGetGraphicsRunningProcesses_v3,                                                 \
         (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos))                     \
    HOOK(nvmlDeviceGetMPSComputeRunningProcesses,                                                  \
         (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos))                  \
    HOOK(nvmlDeviceGetMPSComputeRunningProcesses_v2,                                               \
         (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos))                     \
    HOOK(nvmlDeviceGetMPSComputeRunningProcesses_v3,                                               \
         (nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos))                     \
    HOOK(nvmlDeviceGetRunningProcessDetailList,                                                    \
         (nvmlDevice_t device, nvmlProcessDetailList_v1_t * list))                                 \
    HOOK(nvmlDeviceGetAccountingPids,                                                              \
         (nvmlDevice_t device, unsigned int *count, unsigned int *pids))                           \
    HOOK(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t * rates))          \
    HOOK(nvmlDeviceGetProcessUtilization,                                                          \
         (nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned int *count,       \
          unsigned long long since_us))                                                            \
    HOOK(nvmlDeviceGetProcessesUtilizationInfo,                                                    \
         (nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info))

#define VGPU_CUDA_USES(USE)                                                                        \
    USE(cuCtxGetCurrent, (CUcontext * ctx))                                                        \
    USE(cuCtxGetDevice, (CUdevice * dev))                                                          \
    USE(cuCtxPushCurrent_v2, (CUcontext ctx))                                                      \
    USE(cuCtxPopCurrent_v2, (CUcontext * ctx))                                                     \
    USE(cuDeviceGetCount, (int *count))                                                            \
    USE(cuDeviceGetAttribute, (int *value, int attribute, CUdevice dev))                           \
    USE(cuDeviceGetUuid, (CUuuid * uuid, CUdevice dev))                                            \
    USE(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice dev))                                         \
    USE(cuDevicePrimaryCtxGetState, (CUdevice dev, unsigned int *flags, int *active))              \
    USE(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice dev))                                   \
    USE(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice dev))                            \
    USE(cuMemPoolGetAttribute, (CUmemoryPool pool, int attribute, void *value))                    \
    USE(cuDeviceGetGraphMemAttribute, (CUdevice dev, int attribute, void *value))                  \
    USE(cuGraphGetNodes, (CUgraph graph, CUgraphNode * nodes, size_t *count))                      \
    USE(cuGraphNodeGetType, (CUgraphNode node, int *type))                                         \
    USE(cuGraphChildGraphNodeGetGraph, (CUgraphNode node, CUgraph * graph))                        \
    USE(cuGraphMemAllocNodeGetParams, (CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS * params))     \
    USE(cuStreamGetCtx, (CUstream stream, CUcontext * ctx))                                        \
    USE(cuStreamIsCapturing, (CUstream stream, int *status))                                       \
    USE(cuStreamIsCapturing_ptsz, (CUstream stream, int *status))                                  \
    USE(cuThreadExchangeStreamCaptureMode, (int *mode))                                            \
    USE(cuEventCreate, (CUevent * event, unsigned int flags))                                      \
    USE(cuEventRecord, (CUevent event, CUstream stream))                                           \
    USE(cuEventQuery, (CUevent event))                                                             \
    USE(cuEventElapsedTime, (float *ms, CUevent start, CUevent end))                               \
    USE(cuEventElapsedTime_v2, (float *ms, CUevent start, CUevent end))                            \
    USE(cuPointerGetAttribute, (void *value, int attribute, CUdeviceptr ptr))

#define VGPU_NVML_USES(USE)                                                                        \
    USE(nvmlInit_v2, (void))                                                                       \
    USE(nvmlShutdown, (void))                                                                      \
    USE(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device))                       \
    USE(nvmlDeviceGetUUID, (nvmlDevice_t device, char *uuid, unsigned int length))                 \
    USE(nvmlDeviceGetIndex, (nvmlDevice_t device, unsigned int *index))                            \
    USE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle,                                              \
        (nvmlDevice_t instance, nvmlDevice_t * card))

/* --- derived: identifiers, function types, exported declarations ------------- */

#define VGPU_EXPORT __attribute__((visibility("default")))

enum vgpu_symbol {
#define VGPU_ID(symbol, ...) VGPU_SYM_##symbol,
    VGPU_CUDA_HOOKS(VGPU_ID) VGPU_NVML_HOOKS(VGPU_ID) VGPU_SYM_HOOKS,
    VGPU_SYM_LAST_HOOK = VGPU_SYM_HOOKS - 1,
    VGPU_CUDA_USES(VGPU_ID) VGPU_NVML_USES(VGPU_ID) VGPU_SYM_COUNT
#undef VGPU_ID
};

#define VGPU_TYPE(symbol, base, since, stream, params) typedef CUresult symbol##_fn params;
VGPU_CUDA_HOOKS(VGPU_TYPE)
#undef VGPU_TYPE
#define VGPU_TYPE(symbol, params) typedef CUresult symbol##_fn params;
VGPU_CUDA_USES(VGPU_TYPE)
#undef VGPU_TYPE
#define VGPU_TYPE(symbol, params) typedef nvmlReturn_t symbol##_fn params;
VGPU_NVML_HOOKS(VGPU_TYPE)
VGPU_NVML_USES(VGPU_TYPE)
#undef VGPU_TYPE

#define VGPU_DECLARE(symbol, ...) VGPU_EXPORT symbol##_fn symbol;
VGPU_CUDA_HOOKS(VGPU_DECLARE)
VGPU_NVML_HOOKS(VGPU_DECLARE)
#undef VGPU_DECLARE

#endif
