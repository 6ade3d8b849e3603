/* Inside the emulated libcuda: objects, and what its parts offer each other.
 *
 * One lock (driver_lock) guards everything in the process; it is held for table work
 * and accounting, never while bytes are copied, somebody waits, or the program's
 * functions run. What work does to memory is done in the order of the calls, at once or,
 * behind a function of the program, in the stream's turn; when it is over is the queues'
 * business (timeline.h).
 */
#ifndef VGPU_EMU_DRIVER_H
#define VGPU_EMU_DRIVER_H

#include "abi.h"
#include "cards.h"
#include "duration.h"
#include "lockfile.h"
#include "log.h"
#include "timeline.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))

/* The prototypes of every implemented function: the compiler checks definitions. */
#define F(base, since, symbol, arguments) EXPORT CUresult CUDAAPI symbol arguments;
#define P(base, since, symbol, target)
#define N(base, since, symbol)
#define T(base, since, symbol)
#include "symbols.def"
#undef F
#undef P
#undef N
#undef T

/* --- entering a call (init.c) --------------------------------------------- */
CUresult driver_enter(void); /* initialised, and not the child of a fork? */
/* Is this call a per-thread twin, to which stream 0 is the thread's own? */
bool driver_own_default(void);
extern __thread int driver_per_thread __attribute__((tls_model("initial-exec")));
void driver_lock(void);
void driver_unlock(void);
/* Gives the lock away until `condition` is signalled or `ns` are over (UINT64_MAX: never). */
void driver_await(pthread_cond_t *condition, uint64_t ns);
void errno_restore(const int *saved);
void driver_unlock_scope(const int *unused);

/* First line of an entry point: keeps errno, refuses what cannot go on. */
#define ENTER()                                                                            \
    const int saved_errno_ __attribute__((cleanup(errno_restore), unused)) = errno;       \
    do {                                                                                   \
        CUresult entered_ = driver_enter();                                                \
        if (entered_ != CUDA_SUCCESS)                                                      \
            return entered_;                                                               \
    } while (0)

/* Holds the driver's lock to the end of the block. */
#define LOCKED()                                                                           \
    const int locked_ __attribute__((cleanup(driver_unlock_scope), unused)) =              \
        (driver_lock(), 0)

/* --- devices (device.c) --------------------------------------------------- */
struct device {
    struct emu_card card;
    struct lockfile locks; /* <card>/cuda.lock */
    int ordinal;

    /* This process on the card: the truth about its own use; the slot is a copy. */
    int slot; /* -1: none yet */
    uint64_t generation;
    uint64_t context_bytes;
    uint64_t large_bytes;    /* multiples of the granule */
    uint64_t small_bytes;    /* multiples of EMU_SMALL_UNIT */
    uint64_t swapped_bytes;  /* managed memory outside the card */
    uint64_t resident_bytes; /* host pages */
    uint64_t looked_ns;      /* when work last made sure of the slot's lock */

    struct device_time time;

    CUcontext primary;
    CUmemoryPool default_pool, current_pool, graph_pool;
};

extern struct device devices[EMU_MAX_CARDS];
extern int device_count;
void devices_open(void); /* obeys CUDA_VISIBLE_DEVICES */
struct device *device_at(CUdevice ordinal);

static inline const struct card_description *device_description(const struct device *device)
{
    return &device->card.state->description;
}

/* --- accounting (account.c); the lock is held ------------------------------ */
CUresult account_charge(struct device *device, int64_t context, int64_t large, int64_t small);
CUresult account_resident(struct device *device, int64_t bytes);
/* Managed memory of whole granules: as much on the card as there is room for. */
CUresult account_managed(struct device *device, uint64_t bytes, uint64_t *on_card);
/* Moves managed memory onto the card, as much as there is room for … */
CUresult account_swap_in(struct device *device, uint64_t bytes, uint64_t *moved);
/* … and counts off: bytes that leave the card, bytes that are outside from now on. */
void account_swap_out(struct device *device, int64_t from_card, int64_t outside);
uint64_t account_used(struct device *device); /* over all live processes */
int account_own_slot(struct device *device);  /* -1: none */


/* --- address space (space.c); the lock is held ----------------------------- */

/* Pages of the host behind device memory: which of them have been touched. */
struct backing {
    struct device *device;
    uint64_t *touched; /* a bit a page; NULL: none was touched yet */
    size_t pages, low, high; /* touched ones lie in [low, high) */
    bool shared; /* other processes write there too: untouched pages may hold something */
};
void backing_make(struct backing *backing, struct device *device, size_t bytes);
void backing_free(struct backing *backing); /* its pages are gone */
bool backing_touched(const struct backing *backing, size_t page);
/* Forgets whole pages in the range (the caller drops them); returns how many bytes. */
size_t backing_forget(struct backing *backing, size_t offset, size_t bytes);

enum range_kind {
    RANGE_DEVICE = 1,
    RANGE_POOL,
    RANGE_MAPPED, /* VMM */
    RANGE_MANAGED,
    RANGE_HOST,
    RANGE_REGISTERED,
    RANGE_ARRAY,
    RANGE_IPC, /* another process's */
};

struct range {
    uintptr_t start;
    size_t bytes;
    enum range_kind kind;
    unsigned int flags;
    uint64_t id;
    struct device *device;
    CUcontext context;
    struct backing *backing; /* NULL: the program's own memory */
    size_t backing_offset;
    struct backing own;  /* where it has one of its own */
    size_t mapped_bytes; /* of our own mmap, from start */
    uint64_t large, small, swapped;
    void *owner; /* RANGE_POOL: struct arena, RANGE_MAPPED: struct physical, RANGE_IPC and
                  * exported RANGE_DEVICE: struct shared_range */
    unsigned int access;
};

struct space {
    struct range **ranges; /* sorted by start */
    size_t count, room;
};
extern struct space memory; /* everything a pointer can point into */

struct range *space_find(const struct space *space, uintptr_t address);
struct range *space_next(const struct space *space, uintptr_t address); /* first at or after */
CUresult space_add(struct space *space, struct range *range); /* takes the range over */
void space_remove(struct space *space, struct range *range);  /* frees it */
bool range_on_device(const struct range *range);

/* Is [address, address + bytes) device memory from end to end? */
bool memory_is_device(uintptr_t address, size_t bytes);
/* Charges the pages that a write (or a read of shared pages) will touch. */
CUresult memory_touch(uintptr_t address, size_t bytes);
/* Gives whole pages back that a zero memset covers, zeroes the rest. */
void memory_zero(uintptr_t address, size_t bytes);

void *pages_map(size_t bytes, size_t align, int protection);

/* --- addresses that were freed and wait for their next use (addresses.c) ---- */

/* Readable and writable pages that read as zero; NULL where there is no room. */
void *addresses_take(size_t bytes, size_t align);
/* Takes pages back; none of them is touched any more. */
void addresses_give(void *start, size_t bytes);
void addresses_flush(void); /* unmaps all that are waiting */

/* --- memory (memory.c, pool.c, vmm.c) -------------------------------------- */
CUresult memory_free(CUdeviceptr pointer);
void memory_free_context(CUcontext context);
/* Moves managed memory of this process off the card; returns how much. The caller counts. */
uint64_t memory_evict(struct device *device, uint64_t bytes);
CUresult memory_allocate(CUdeviceptr *pointer, size_t bytes, enum range_kind kind,
                         unsigned int flags, bool charged);

void memory_release(struct range *range);
void ipc_release(struct range *range); /* what the range has beside it (ipc.c) */

/* An array's memory: copies reach it by row and layer (array.c). */
struct array_view {
    size_t width, rows, layers; /* width in bytes */
    size_t pitch, slice;
};
bool array_find(CUarray array, uintptr_t *start, struct array_view *view);
/* Whether a call is one that returns when its copy is over. */
enum patience { RETURN, WAIT };
CUresult copy_block(const CUDA_MEMCPY3D *block, CUstream stream, enum patience patience);

CUmemoryPool pool_default(struct device *device);
CUmemoryPool pool_of(const struct range *range);
CUresult pool_release(struct range *range); /* of kind RANGE_POOL */
void pools_settle(void);                    /* at each synchronisation */
void pools_reset(struct device *device);

/* --- contexts (context.c) -------------------------------------------------- */
struct stream_state {
    uint64_t magic;
    CUcontext context;
    unsigned int flags;
    int priority;
    uint64_t id;
    struct capture *capture; /* NULL: none */
};

/* What the next work of a capture comes after. */
struct front {
    CUgraphNode *nodes;
    size_t count, room;
};

#define STREAM_MAGIC 0x6d61657274735645ull

struct CUstream_st {
    struct stream_state state;
    struct line line; /* outlives the handle: others may wait for its positions */
    uint64_t legacy_seen; /* position of the default stream that this one waited for … */
    uint64_t legacy_met;  /* … and of this one that the default stream waited for */
    uint64_t thread;      /* whose default stream it is; 0: nobody's */
    struct front front;   /* while it captures */
    struct CUstream_st *next; /* of the context, or of the free list */
};

#define CONTEXT_MAGIC 0x7478657473455645ull

/* Never given back to the allocator: a stale handle is recognised, not followed. */
struct CUctx_st {
    uint64_t magic;
    struct device *device;
    unsigned int flags;
    uint64_t id;
    unsigned int retained; /* primary: number of retains; else 1 while alive */
    bool primary;
    unsigned int api_version;
    size_t limits[CU_LIMIT_MAX];
    int cache_config, shared_config;
    uint64_t peers; /* a bit a device */
    struct CUstream_st null_stream;
    struct CUstream_st *thread_streams; /* the default streams of threads, one each */
    struct CUstream_st *streams;
};

CUcontext context_current(void);
/* The current context; an error where there is none or it is gone. */
CUresult context_need(CUcontext *context);
/* Waits for all that was asked of the context until now; without the lock. */
void context_drain(CUcontext context);
bool context_alive(CUcontext context);
CUcontext context_primary(struct device *device); /* made, perhaps not retained */

/* First line of an entry point that needs a current context: `context`, lock held. */
#define CURRENT()                                                                          \
    ENTER();                                                                               \
    LOCKED();                                                                              \
    CUcontext context;                                                                     \
    do {                                                                                   \
        CUresult need_ = context_need(&context);                                           \
        if (need_ != CUDA_SUCCESS)                                                         \
            return need_;                                                                  \
    } while (0)

/* --- streams, graphs (stream.c, capture.c, graph.c) ------------------------- */
enum op_kind { OP_KERNEL, OP_COPY, OP_SET, OP_HOST, OP_EVENT, OP_EMPTY, OP_ALLOC, OP_FREE };

enum copy_direction { COPY_ANY, COPY_TO_DEVICE, COPY_TO_HOST, COPY_ON_DEVICE };

struct op {
    enum op_kind kind;
    bool synchronous; /* the call is over when the copy is, as far as hardware does so */
    union {
        struct {
            uintptr_t to, from;
            size_t width, height, depth;
            size_t to_pitch, from_pitch;
            size_t to_slice, from_slice; /* bytes from one layer to the next */
            enum copy_direction direction;
        } copy;
        struct {
            uintptr_t to;
            size_t width, height, pitch; /* width in elements */
            uint32_t value;
            unsigned int element;
        } set;
        struct {
            CUhostFn function;
            void *data;
        } host;
        CUevent event;
        struct {
            CUfunction function;
            struct cost cost;
        } kernel;
        CUdeviceptr pointer;
    } as;
};

CUresult stream_find(CUstream handle, struct CUstream_st **stream);
/* Does the work, or records it where the stream captures. */
CUresult stream_submit(CUstream handle, const struct op *op);
void stream_forget_context(CUcontext context);

/* Work of a stream that is no longer captured or looked up (submit.c); without the lock. */
CUresult submit(struct CUstream_st *stream, const struct op *op);
/* One of them, with the lock, which is away while bytes are copied; *wait is set where the
 * call that asks for it returns when it is over. */
CUresult submit_one(struct CUstream_st *stream, const struct op *op, uint64_t now_ns,
                    bool counted, bool *wait);
/* Waits until the stream's queue takes another launch, with the lock, which is away
 * meanwhile. */
void submit_room(struct CUstream_st *stream);
/* Queues the waits that the default stream's rules put before any work; with the lock. */
CUresult submit_order(struct CUstream_st *stream);
/* What an operation does to memory (copy.c); without the lock. */
CUresult op_run(const struct op *op);
bool op_touches(const struct op *op); /* has it any? */

/* One stream capture, perhaps over several streams. Kept for reuse when it is over:
 * whoever points here compares the id. */
struct capture {
    uint64_t id; /* 0: over */
    struct CUstream_st *origin;
    CUgraph graph;
    bool invalidated, into_given_graph;
    struct CUstream_st **streams;
    size_t count, room;
    struct capture *next;
};
CUresult capture_record(struct CUstream_st *stream, const struct op *op);
CUresult capture_refuse(struct CUstream_st *stream); /* a call that breaks a capture */
CUresult capture_join(struct CUstream_st *stream, struct capture *capture);
CUresult capture_mark(struct CUevent_st *event, const struct CUstream_st *stream);
CUresult capture_wait(struct CUstream_st *stream, const struct CUevent_st *event);
void capture_leave(struct CUstream_st *stream); /* the stream is destroyed */

CUgraph graph_make(void);
/* Behind all that the graph has; behind given nodes. */
CUresult graph_append(CUgraph graph, const struct op *op, CUgraphNode *node);
CUresult graph_append_after(CUgraph graph, const struct op *op, const CUgraphNode *after,
                            size_t count, CUgraphNode *node);
CUgraphNode graph_last(CUgraph graph);
void graph_drop(CUgraph graph);
bool graph_valid(CUgraph graph);

#define EVENT_MAGIC 0x746e657665535645ull
struct CUevent_st {
    uint64_t magic;
    unsigned int flags;
    bool recorded;
    bool pending;    /* the last record is not over */
    uint64_t serial; /* of records, through all lives of this structure */
    uint64_t time_ns;
    CUcontext context;
    struct device *device; /* of the stream that it was recorded on … */
    struct line *line;     /* … and where in its queue */
    uint64_t position;
    struct capture *capture; /* recorded while capturing … */
    uint64_t capture_id;     /* … this one, behind these nodes */
    struct front front;
    struct CUevent_st *next; /* of the free list */
};
/* Records in a stream, with the lock; event_done when its turn has come. */
CUresult event_record(CUevent event, struct CUstream_st *stream, uint64_t arrived_ns);
void event_done(CUevent event, uint64_t serial, uint64_t now_ns);

/* --- code (module.c, launch.c) ---------------------------------------------- */
#define FUNCTION_MAGIC 0x6e6f6974636e7546ull
struct function {
    uint64_t magic;
    char *name;
    struct image *image;
    enum kernel_model model;
    int max_dynamic_shared;
    int carveout;
    struct function *next;
};
struct function *function_of(const void *handle); /* NULL where it is none */
/* Reads the parameters, as far as the kernel's are known. */
struct cost launch_cost(const struct function *function, uint64_t blocks, uint64_t threads,
                        unsigned int shared_bytes, void **parameters, void **extra);

#endif
