/* The CUDA driver API as far as this library touches it: our own minimal
 * declarations of the public ABI (tests compare them with NVIDIA's header where
 * that is installed). Structures that are only passed through stay opaque. */
#ifndef VGPU_SHIM_CUDA_ABI_H
#define VGPU_SHIM_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1; /* before CUDA 3.2: 32 bit */
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUfunc_st *CUfunction;
typedef struct CUevent_st *CUevent;
typedef void CUhostFn(void *data);
typedef void CUstreamCallback(CUstream stream, CUresult status, void *data);

typedef struct {
    unsigned char bytes[16];
} CUuuid;

typedef struct {
    int type; /* CU_MEM_LOCATION_… */
    int id;
} CUmemLocation;

typedef struct {
    int type;
    int requested_handle_types;
    CUmemLocation location;
    void *win32_metadata;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct {
    int alloc_type;
    int handle_types;
    CUmemLocation location;
    void *win32_attributes;
    size_t max_size;
    unsigned char rest[56];
} CUmemPoolProps;

typedef struct {
    unsigned int width, height;
    int format;
    unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR_v1;

typedef struct {
    size_t width, height;
    int format;
    unsigned int channels;
} CUDA_ARRAY_DESCRIPTOR_v2;

typedef struct {
    unsigned int width, height, depth;
    int format;
    unsigned int channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned int channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR_v2;

typedef struct {
    unsigned int grid[3], block[3], shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned int attribute_count;
} CUlaunchConfig;

typedef struct {
    CUfunction function;
    unsigned int grid[3], block[3], shared_bytes;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

typedef struct {
    CUmemPoolProps props;
    const void *access;
    size_t access_count;
    size_t bytes;
    CUdeviceptr ptr;
} CUDA_MEM_ALLOC_NODE_PARAMS; /* of either version */

typedef struct {
    int type; /* CU_GRAPH_NODE_TYPE_… */
    int reserved[3];
    unsigned char body[240];
} CUgraphNodeParams;

typedef struct { /* one end of a copy of a plane */
    size_t x_bytes, y;
    int type; /* CU_MEMORYTYPE_… */
    void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch;
} CUDA_MEMCPY2D_end;

typedef struct {
    CUDA_MEMCPY2D_end from, to;
    size_t width_bytes, height;
} CUDA_MEMCPY2D; /* v2 */

typedef struct {
    size_t x_bytes, y, z, lod;
    int type;
    void *host;
    CUdeviceptr device;
    CUarray array;
    void *reserved;
    size_t pitch, height;
} CUDA_MEMCPY3D_end;

typedef struct {
    CUDA_MEMCPY3D_end from, to;
    size_t width_bytes, height, depth;
} CUDA_MEMCPY3D; /* v2 */

typedef struct { /* one end of a copy of a batch of blocks */
    int type; /* CU_MEMCPY_OPERAND_TYPE_… */
    union {
        struct {
            CUdeviceptr ptr;
            size_t row_elements, layer_rows;
            CUmemLocation hint;
        } pointer;
        struct {
            CUarray array;
            size_t x, y, z;
        } array;
    };
} CUmemcpy3DOperand;

typedef struct {
    CUmemcpy3DOperand from, to;
    size_t width, height, depth; /* in elements: bytes where both ends are pointers */
    int access_order;
    unsigned int flags;
} CUDA_MEMCPY3D_BATCH_OP;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_NOT_SUPPORTED = 801,

    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
    CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN = 6,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMORYTYPE_ARRAY = 3,
    CU_MEMORYTYPE_UNIFIED = 4,
    CU_MEMCPY_OPERAND_TYPE_POINTER = 1,
    CU_MEMCPY_OPERAND_TYPE_ARRAY = 2,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,
    CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_GRAPH_NODE_TYPE_GRAPH = 4,
    CU_GRAPH_NODE_TYPE_MEM_ALLOC = 10,
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
    CUDA_ARRAY3D_SPARSE = 0x40,
    CUDA_ARRAY3D_DEFERRED_MAPPING = 0x80,
    CUDA_ARRAY3D_LAYERED = 0x01,
    CUDA_ARRAY3D_CUBEMAP = 0x04,
};

_Static_assert(sizeof(CUmemAllocationProp) == 32, "allocation properties");
_Static_assert(sizeof(CUmemPoolProps) == 88, "pool properties");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128, "copy of a plane");
_Static_assert(sizeof(CUDA_MEMCPY3D) == 200, "copy of a block");
_Static_assert(sizeof(CUDA_MEMCPY3D_BATCH_OP) == 112, "copy of a batch");
_Static_assert(sizeof(CUlaunchConfig) == 56, "launch configuration");
_Static_assert(sizeof(CUDA_LAUNCH_PARAMS) == 56, "launch parameters");
_Static_assert(sizeof(CUDA_MEM_ALLOC_NODE_PARAMS) == 120, "memory node parameters");
_Static_assert(sizeof(CUgraphNodeParams) == 256, "graph node parameters");

#endif
