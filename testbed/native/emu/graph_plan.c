/* How an executable graph runs: its nodes spread over lanes, which are queues like those of
 * streams, so that what does not depend on each other overlaps as far as the card lets it. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define LANES 64 /* more branches than that wait for each other */

void plan_free(struct plan *plan)
{
    free(plan->steps);
    free(plan->waits);
    *plan = (struct plan){0};
}

CUresult plan_copy(struct plan *to, const struct plan *from)
{
    *to = *from;
    to->steps = malloc((from->count + 1) * sizeof *to->steps);
    to->waits = malloc((from->waits_count + 1) * sizeof *to->waits);
    if (to->steps == NULL || to->waits == NULL) {
        plan_free(to);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(to->steps, from->steps, from->count * sizeof *to->steps);
    if (from->waits_count > 0)
        memcpy(to->waits, from->waits, from->waits_count * sizeof *to->waits);
    return CUDA_SUCCESS;
}

/* A node goes on in the lane of the first of those before it that is still the end of its
 * lane, else it opens one. */
static size_t lane_of(const struct CUgraphNode_st *node, const struct plan *plan,
                      const size_t ends[LANES])
{
    for (size_t i = 0; i < node->after_count; i++) {
        size_t lane = plan->steps[node->after[i]].lane;
        if (ends[lane] == node->after[i])
            return lane;
    }
    return plan->lanes < LANES ? plan->lanes : node->index % LANES;
}

CUresult plan_make(struct plan *plan, CUgraph graph)
{
    size_t edges = 0, ends[LANES];
    for (size_t i = 0; i < graph->count; i++)
        edges += graph->nodes[i]->after_count;
    *plan = (struct plan){.steps = calloc(graph->count + 1, sizeof *plan->steps),
                          .waits = calloc(edges + 1, sizeof *plan->waits),
                          .lanes = 0};
    if (plan->steps == NULL || plan->waits == NULL) {
        plan_free(plan);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (; plan->count < graph->count; plan->count++) {
        const struct CUgraphNode_st *node = graph->nodes[plan->count];
        struct step *step = &plan->steps[plan->count];
        *step = (struct step){.op = node->op,
                              .lane = lane_of(node, plan, ends),
                              .first_wait = plan->waits_count};
        if (step->lane == plan->lanes)
            plan->lanes++;
        ends[step->lane] = plan->count;
        for (size_t i = 0; i < node->after_count; i++)
            if (plan->steps[node->after[i]].lane != step->lane) {
                plan->waits[plan->waits_count++] = node->after[i];
                step->waits++;
            }
    }
    return CUDA_SUCCESS;
}

/* --- launching ------------------------------------------------------------------------------ */

/* Lanes beside the stream's own: kept for reuse, never freed (positions may be waited for). */
static struct CUstream_st *spare_lanes;

static struct CUstream_st *lane_take(struct CUstream_st *stream)
{
    struct CUstream_st **link = &spare_lanes;
    while (*link != NULL && !line_idle(&(*link)->line))
        link = &(*link)->next;
    struct CUstream_st *lane = *link;
    if (lane != NULL)
        *link = lane->next;
    else
        lane = calloc(1, sizeof *lane);
    if (lane == NULL)
        return NULL;
    lane->state = (struct stream_state){.context = stream->state.context,
                                        .flags = CU_STREAM_NON_BLOCKING};
    lane->line.owner = lane;
    lane->line.priority = stream->line.priority;
    return lane;
}

static CUresult wait_in(struct CUstream_st *stream, struct line *line, uint64_t position,
                        bool counted)
{
    return time_push(stream->state.context->device, &stream->line,
                     &(struct work){.kind = WORK_WAIT,
                                    .counted = counted,
                                    .arrived_ns = emu_now_ns(),
                                    .as.wait = {line, position}});
}

static CUresult launch_steps(const struct plan *plan, struct CUstream_st *lanes[LANES],
                             uint64_t *positions)
{
    struct CUstream_st *stream = lanes[0];
    uint64_t start = stream->line.pushed;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < plan->count && result == CUDA_SUCCESS; i++) {
        const struct step *step = &plan->steps[i];
        if (lanes[step->lane] == NULL) {
            lanes[step->lane] = lane_take(stream);
            if (lanes[step->lane] == NULL)
                return CUDA_ERROR_OUT_OF_MEMORY;
            result = wait_in(lanes[step->lane], &stream->line, start, false);
        }
        struct CUstream_st *lane = lanes[step->lane];
        for (size_t j = 0; j < step->waits && result == CUDA_SUCCESS; j++) {
            size_t before = plan->waits[step->first_wait + j];
            result = wait_in(lane, &lanes[plan->steps[before].lane]->line, positions[before],
                             false);
        }
        bool wait = false; /* copies of a graph are never waited for */
        if (result == CUDA_SUCCESS)
            result = submit_one(lane, &step->op, emu_now_ns(), false, &wait);
        positions[i] = lane->line.pushed;
    }
    return result;
}

CUresult plan_launch(const struct plan *plan, struct CUstream_st *stream)
{
    uint64_t *positions = calloc(plan->count, sizeof *positions);
    if (positions == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct CUstream_st *lanes[LANES] = {stream};
    LOCKED();
    submit_room(stream);
    CUresult result = submit_order(stream);
    if (result == CUDA_SUCCESS)
        result = launch_steps(plan, lanes, positions);
    for (size_t i = 1; i < LANES; i++)
        if (lanes[i] != NULL) {
            CUresult joined = wait_in(stream, &lanes[i]->line, lanes[i]->line.pushed, false);
            result = result == CUDA_SUCCESS ? joined : result;
            lanes[i]->next = spare_lanes;
            spare_lanes = lanes[i];
        }
    if (result == CUDA_SUCCESS) /* takes one place of the queue until all of it is over */
        result = wait_in(stream, &stream->line, 0, true);
    free(positions);
    return result;
}
