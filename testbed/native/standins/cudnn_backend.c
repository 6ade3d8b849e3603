/* cuDNN's graph interface: descriptors, two engines for every graph, plans.
 *
 * Any graph is taken; its cost is settled when a plan is finalised (cudnn_cost.c) and
 * launched when it is executed. Engine 0 uses tensor cores and says so in its notes, by
 * which a caller that wants full fp32 leaves it out; engine 1 does not.
 */
#include "cudnn.h"

#define ENGINES 2
#define MOST_VALUES (1 << 20)
static const char JSON[] = "{\"vgpu-testbed\": \"emulated plan\"}";

static size_t size_of(int type)
{
    switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
        return 1;
    case CUDNN_TYPE_FRACTION:
        return 16;
    default: /* enumerations, int32, float */
        return 4;
    }
}

/* --- reading ------------------------------------------------------------------------------ */

const struct attribute *attribute_of(const struct descriptor *descriptor, int name)
{
    const struct attribute *attribute = descriptor ? descriptor->attributes : NULL;
    while (attribute && attribute->name != name)
        attribute = attribute->next;
    return attribute && attribute->count > 0 ? attribute : NULL;
}

int64_t number_of(const struct descriptor *descriptor, int name, int64_t otherwise)
{
    const struct attribute *attribute = attribute_of(descriptor, name);
    if (!attribute)
        return otherwise;
    switch (size_of(attribute->type)) {
    case 8:
        return *(const int64_t *)attribute->values;
    case 4:
        return *(const int32_t *)attribute->values;
    default:
        return *(const unsigned char *)attribute->values;
    }
}

struct descriptor *member_of(const struct descriptor *descriptor, int name)
{
    const struct attribute *attribute = attribute_of(descriptor, name);
    return attribute && attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR
               ? *(struct descriptor **)attribute->values
               : NULL;
}

/* --- life ----------------------------------------------------------------------------------- */

static void release(struct descriptor *descriptor);

static void drop(struct attribute *attribute)
{
    if (attribute->type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < attribute->count; i++)
            release(((struct descriptor **)attribute->values)[i]);
    free(attribute->values);
    free(attribute);
}

/* As deep as graphs are nested: plan, configuration, engine, graph, operation, tensor. */
static void release(struct descriptor *descriptor)
{
    if (__atomic_sub_fetch(&descriptor->references, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    for (struct attribute *attribute = descriptor->attributes, *next; attribute; attribute = next) {
        next = attribute->next;
        drop(attribute);
    }
    free(descriptor);
}

static int put(struct descriptor *descriptor, int name, int type, int64_t count, const void *values)
{
    size_t bytes = (size_t)count * size_of(type);
    struct attribute *attribute = calloc(1, sizeof *attribute);
    void *copy = malloc(bytes ? bytes : 1);
    if (!attribute || !copy) {
        free(attribute);
        free(copy);
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    }
    if (bytes)
        memcpy(copy, values, bytes);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++)
            __atomic_add_fetch(&((struct descriptor **)copy)[i]->references, 1, __ATOMIC_RELAXED);
    for (struct attribute **link = &descriptor->attributes; *link; link = &(*link)->next)
        if ((*link)->name == name) { /* set again: the newer value */
            struct attribute *old = *link;
            *link = old->next;
            drop(old);
            break;
        }
    *attribute = (struct attribute){name, type, count, copy, descriptor->attributes};
    descriptor->attributes = attribute;
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnBackendCreateDescriptor(int type, struct descriptor **descriptor)
{
    if (!descriptor)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *descriptor = calloc(1, sizeof **descriptor);
    if (!*descriptor)
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    (*descriptor)->type = type;
    (*descriptor)->references = 1;
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnBackendDestroyDescriptor(struct descriptor *descriptor)
{
    if (descriptor)
        release(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnBackendSetAttribute(struct descriptor *descriptor, int name, int type, int64_t count,
                                 const void *values)
{
    if (!descriptor || (count > 0 && !values))
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (descriptor->finalized || count < 0 || count > MOST_VALUES)
        return CUDNN_STATUS_BAD_PARAM;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++)
            if (!((struct descriptor *const *)values)[i])
                return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    return put(descriptor, name, type, count, values);
}

API int cudnnBackendFinalize(struct descriptor *descriptor)
{
    if (!descriptor)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (descriptor->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
        int64_t engine = number_of(descriptor, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0);
        if (engine < 0 || engine >= ENGINES)
            return CUDNN_STATUS_NOT_SUPPORTED;
    }
    if (descriptor->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const struct descriptor *engine = member_of(
            member_of(descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG),
            CUDNN_ATTR_ENGINECFG_ENGINE);
        const struct descriptor *graph = member_of(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
        if (!graph)
            return CUDNN_STATUS_BAD_PARAM;
        descriptor->work = graph_work(graph,
                                      number_of(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0) == 0);
    }
    descriptor->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

/* --- asking ----------------------------------------------------------------------------------- */

static int answer(const void *value, int type, int64_t count, int64_t room, int64_t *given,
                  void *values)
{
    if (given)
        *given = count;
    if (values && room > 0)
        memcpy(values, value, (size_t)(count < room ? count : room) * size_of(type));
    return CUDNN_STATUS_SUCCESS;
}

/* Fills descriptors that the caller made, one an engine configuration, best first. */
static int heuristics(const struct descriptor *asked, int64_t room, int64_t *given, void *values)
{
    struct descriptor *graph = member_of(asked, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    if (!graph)
        return CUDNN_STATUS_BAD_PARAM;
    int64_t count = !values || room < 1 ? 0 : room < ENGINES ? room : ENGINES;
    for (int64_t i = 0; i < count; i++) {
        struct descriptor *configuration = ((struct descriptor **)values)[i], *engine;
        if (!configuration || configuration->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
            return CUDNN_STATUS_BAD_PARAM;
        int status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine);
        if (status != CUDNN_STATUS_SUCCESS)
            return status;
        status = put(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                     &graph);
        if (status == CUDNN_STATUS_SUCCESS)
            status = put(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &i);
        engine->finalized = true;
        if (status == CUDNN_STATUS_SUCCESS)
            status = put(configuration, CUDNN_ATTR_ENGINECFG_ENGINE,
                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
        release(engine); /* the configuration holds it */
        if (status != CUDNN_STATUS_SUCCESS)
            return status;
        configuration->finalized = true;
    }
    if (given)
        *given = count ? count : ENGINES;
    return CUDNN_STATUS_SUCCESS;
}

/* A descriptor that the caller made becomes a copy of ours. */
static int copy_members(const struct attribute *attribute, int64_t room, int64_t *given,
                        void *values)
{
    struct descriptor **targets = values;
    for (int64_t i = 0; targets && i < attribute->count && i < room; i++) {
        const struct descriptor *source = ((struct descriptor **)attribute->values)[i];
        if (!targets[i] || targets[i] == source)
            continue;
        for (const struct attribute *a = source->attributes; a; a = a->next) {
            int status = put(targets[i], a->name, a->type, a->count, a->values);
            if (status != CUDNN_STATUS_SUCCESS)
                return status;
        }
        targets[i]->type = source->type;
        targets[i]->finalized = source->finalized;
        targets[i]->work = source->work;
    }
    if (given)
        *given = attribute->count;
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnBackendGetAttribute(const struct descriptor *descriptor, int name, int type,
                                 int64_t room, int64_t *given, void *values)
{
    static const int64_t none = 0, engines = ENGINES;
    static const int tensor_core = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    if (!descriptor)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    const struct attribute *attribute = attribute_of(descriptor, name);
    if (attribute && attribute->type != type)
        return CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE;
    if (attribute && type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return copy_members(attribute, room, given, values);
    if (attribute)
        return answer(attribute->values, type, attribute->count, room, given, values);
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        return heuristics(descriptor, room, given, values);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        return answer(&tensor_core, type,
                      number_of(descriptor, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0) == 0, room, given,
                      values);
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
        return answer(&engines, type, 1, room, given, values);
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        return answer(&none, type, 1, room, given, values);
    case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION:
        return answer(JSON, type, sizeof JSON, room, given, values);
    default: /* knobs, behaviour notes, layouts: none */
        return answer(&none, type, 0, room, given, values);
    }
}

API int cudnnBackendExecute(struct dnn_handle *handle, const struct descriptor *plan,
                            const struct descriptor *pack)
{
    if (!handle || !plan || !pack)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (!plan->finalized || plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
    return work_launch(&plan->work, handle->stream) == 0 ? CUDNN_STATUS_SUCCESS
                                                         : CUDNN_STATUS_EXECUTION_FAILED;
}
