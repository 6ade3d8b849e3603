/* Stream capture, graphs and the objects that they keep alive. */
#include "runtime.h"

API cudaError_t cudaStreamIsCapturing(CUstream stream, int *status)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamIsCapturing(stream, status));
}

API cudaError_t cudaStreamBeginCapture(CUstream stream, int mode)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamBeginCapture(stream, mode));
}

API cudaError_t cudaStreamEndCapture(CUstream stream, CUgraph *graph)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamEndCapture(stream, graph));
}

API cudaError_t cudaStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                              const CUgraphNode *dependencies, const void *edges,
                                              size_t count, int mode)
{
    REQUIRE_CONTEXT();
    return done(
        driver.cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode));
}

API cudaError_t cudaStreamGetCaptureInfo(CUstream stream, int *status, unsigned long long *id,
                                         CUgraph *graph, const CUgraphNode **dependencies,
                                         const void **edges, size_t *count)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamGetCaptureInfo(stream, status, (uint64_t *)id, graph, dependencies,
                                              edges, count));
}

API cudaError_t cudaStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies,
                                                    const void *edges, size_t count,
                                                    unsigned int flags)
{
    REQUIRE_CONTEXT();
    return done(
        driver.cuStreamUpdateCaptureDependencies(stream, dependencies, edges, count, flags));
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode)
{
    REQUIRE_DRIVER();
    return done(driver.cuThreadExchangeStreamCaptureMode(mode));
}

API cudaError_t cudaGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                              unsigned long long flags)
{
    REQUIRE_CONTEXT();
    return done(driver.cuGraphInstantiateWithFlags(executable, graph, flags));
}

API cudaError_t cudaGraphInstantiate(CUgraphExec *executable, CUgraph graph,
                                     unsigned long long flags)
{
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

API cudaError_t cudaGraphLaunch(CUgraphExec executable, CUstream stream)
{
    REQUIRE_CONTEXT();
    return done(driver.cuGraphLaunch(executable, stream));
}

API cudaError_t cudaGraphDestroy(CUgraph graph)
{
    REQUIRE_DRIVER();
    return done(driver.cuGraphDestroy(graph));
}

API cudaError_t cudaGraphExecDestroy(CUgraphExec executable)
{
    REQUIRE_DRIVER();
    return done(driver.cuGraphExecDestroy(executable));
}

API cudaError_t cudaGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    REQUIRE_DRIVER();
    return done(driver.cuGraphGetNodes(graph, nodes, count));
}

API cudaError_t cudaGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *dependencies,
                                             void *edges, size_t *count)
{
    REQUIRE_DRIVER();
    return done(driver.cuGraphNodeGetDependencies(node, dependencies, edges, count));
}

/* Conditional nodes only (what torch adds itself; everything else is captured): other
 * node types name kernels and contexts in two different ways on the two levels. */
API cudaError_t cudaGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                 const void *edges, size_t count,
                                 struct cudaGraphNodeParams *parameters)
{
    REQUIRE_CONTEXT();
    if (!parameters)
        return fail(cudaErrorInvalidValue);
    if (parameters->type != cudaGraphNodeTypeConditional)
        return fail(cudaErrorNotSupported);
    struct cudaGraphNodeParams own = *parameters;
    if (!own.of.conditional.ctx)
        RETURN_IF(done(driver.cuCtxGetCurrent(&own.of.conditional.ctx)));
    RETURN_IF(done(driver.cuGraphAddNode(node, graph, dependencies, edges, count, &own)));
    parameters->of.conditional.phGraph_out = own.of.conditional.phGraph_out;
    return cudaSuccess;
}

API cudaError_t cudaGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph,
                                                 unsigned int value, unsigned int flags)
{
    CUcontext context = NULL;
    REQUIRE_CONTEXT();
    RETURN_IF(done(driver.cuCtxGetCurrent(&context)));
    return done(driver.cuGraphConditionalHandleCreate(handle, graph, context, value, flags));
}

API cudaError_t cudaUserObjectCreate(CUuserObject *object, void *data, CUhostFn destroy,
                                     unsigned int references, unsigned int flags)
{
    REQUIRE_DRIVER();
    return done(driver.cuUserObjectCreate(object, data, destroy, references, flags));
}

API cudaError_t cudaUserObjectRelease(CUuserObject object, unsigned int count)
{
    REQUIRE_DRIVER();
    return done(driver.cuUserObjectRelease(object, count));
}

API cudaError_t cudaGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                          unsigned int flags)
{
    REQUIRE_DRIVER();
    return done(driver.cuGraphRetainUserObject(graph, object, count, flags));
}
