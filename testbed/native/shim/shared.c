#define _GNU_SOURCE
#include "shared.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "log.h"
#include "sys.h"

#ifndef VGPU_REGION_LINK
#define VGPU_REGION_LINK "/usr/local/vgpu/region"
#endif

#define PATH_BYTES 1024
#define RECORD_NONE (-1)
/* Position that our descriptor of the lock file stands at, and nobody else's by chance: one quick
 * call tells whether it is still ours. Below what any file system's files can be long. */
#define MARK 0x7667707575ll
#define TRUSTED_NS 10000000 /* so long a record lock that was seen is believed in */

static struct hami_region *hami;
static struct vgpu_extension *extension; /* NULL = nothing is counted */
static char lock_path[PATH_BYTES + 8];       /* empty = private region */
static int lock_fd = -1;
static dev_t lock_device;
static ino_t lock_inode;
static bool lock_marked;
static int record = RECORD_NONE;
static uint64_t record_generation;
static int64_t joined_at; /* when the record's lock was seen to hold */

/* --- finding and validating the region -------------------------------------- */

static uint64_t fnv1a(const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3ull;
    return hash;
}

static bool valid(const struct vgpu_extension *ext, struct vgpu_constant *copy) {
    if (atomic_load_explicit((const _Atomic uint64_t *)&ext->magic, memory_order_acquire) !=
        VGPU_EXT_MAGIC)
        return false;
    if (ext->version != VGPU_EXT_VERSION || ext->bytes != sizeof(struct vgpu_extension))
        return false;
    uint64_t expected = ext->checksum;
    *copy = ext->constant; /* checked and used from the copy: the file can change */
    return fnv1a(copy, sizeof *copy) == expected && copy->device_count <= VGPU_MAX_DEVICES;
}

/* The region behind a link, so that every process of the container finds the same lock
 * file by whichever name it came. */
static bool resolve(const char *path, char *out) {
    char target[PATH_BYTES];
    long length = vgpu_readlink(path, target, sizeof target - 1);
    if (length < 0 || target[0] == '/' || strrchr(path, '/') == NULL) {
        if (length >= 0) target[length] = '\0';
        return snprintf(out, PATH_BYTES, "%s", length < 0 ? path : target) < PATH_BYTES - 8;
    }
    target[length] = '\0';
    int folder = (int)(strrchr(path, '/') - path);
    return snprintf(out, PATH_BYTES, "%.*s/%s", folder, path, target) < PATH_BYTES - 8;
}

enum opened { OPENED, ABSENT, INVALID };

/* `why` becomes what is wrong with it, also where its limits could be read. */
static enum opened open_region(const char *given, struct vgpu_limits *limits, const char **why) {
    char path[PATH_BYTES];
    *why = "has too long a name";
    if (!resolve(given, path)) return INVALID;
    *why = "is missing";
    int fd = vgpu_open(path, O_RDWR | O_CLOEXEC, 0);
    if (fd == -ENOENT || fd == -ENOTDIR) return ABSENT;
    bool writable = fd >= 0;
    if (fd == -EACCES || fd == -EROFS || fd == -EPERM) /* limits can still be read */
        fd = vgpu_open(path, O_RDONLY | O_CLOEXEC, 0);
    *why = "cannot be opened";
    if (fd < 0) return INVALID;
    struct stat st;
    void *at = NULL;
    if (vgpu_fstat(fd, &st) == 0 && (size_t)st.st_size >= VGPU_REGION_BYTES)
        at = vgpu_map(VGPU_REGION_BYTES, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd);
    vgpu_close(fd);
    *why = "is too short or cannot be mapped";
    if (at == NULL) return INVALID;
    struct vgpu_extension *ext = (void *)((char *)at + VGPU_EXT_OFFSET);
    struct vgpu_constant copy;
    if (!valid(ext, &copy)) {
        *why = "is not valid (magic, version or checksum)";
        vgpu_unmap(at, VGPU_REGION_BYTES);
        return INVALID;
    }
    vgpu_limits_from_constant(limits, &copy);
    if (!writable) {
        *why = "is read-only";
        vgpu_unmap(at, VGPU_REGION_BYTES);
        return OPENED;
    }
    *why = NULL;
    hami = at;
    extension = ext;
    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    return OPENED;
}

/* --- the lock file ------------------------------------------------------------ */

/* One descriptor for the life of the process: closing any descriptor of the file drops
 * all its locks. High, so that loops over the low ones spare it; out of exec's way. */
static bool adopt_lock_file(int fd) {
    if (fd < 0) {
        VGPU_LOG(VGPU_LOG_ERROR, "lock file %s cannot be opened: errno %d", lock_path, -fd);
        return false;
    }
    static const int floors[] = {1000, 500, 200, 100};
    for (size_t i = 0; i < sizeof floors / sizeof floors[0]; i++) {
        int high = vgpu_fcntl(fd, F_DUPFD_CLOEXEC, floors[i]);
        if (high < 0) continue;
        vgpu_close(fd); /* before any lock is taken */
        fd = high;
        break;
    }
    struct stat st;
    if (vgpu_fstat(fd, &st) != 0) return false;
    lock_device = st.st_dev;
    lock_inode = st.st_ino;
    lock_fd = fd;
    lock_marked = vgpu_sys(SYS_lseek, fd, MARK, SEEK_SET, 0, 0, 0) == MARK;
    return true;
}

/* Whether the descriptor is still ours: programs close all descriptors, and the number
 * may be another file's by now (then it is not ours to close). */
static bool lock_file_is_open(void) {
    struct stat st;
    if (lock_fd >= 0 && lock_marked)
        return vgpu_sys(SYS_lseek, lock_fd, 0, SEEK_CUR, 0, 0, 0) == MARK;
    return lock_fd >= 0 && vgpu_fstat(lock_fd, &st) == 0 && st.st_dev == lock_device &&
           st.st_ino == lock_inode;
}

/* A region of our own, for a container without one. Forked children share it and its
 * lock file, which therefore exists from the start; a child that lost the descriptor
 * cannot get it back and begins alone. */
static void open_private(void) {
    void *at = vgpu_map(VGPU_REGION_BYTES, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (at == NULL) return;
    hami = at;
    extension = (void *)((char *)at + VGPU_EXT_OFFSET);
    extension->state_flags = VGPU_STATE_NO_REGION;
    record = RECORD_NONE;
    adopt_lock_file((int)vgpu_sys(SYS_memfd_create, (long)"vgpu-locks", 1 /* MFD_CLOEXEC */, 0, 0,
                                  0, 0));
}

/* One line that nobody asked for: what holds now is not what was meant to. */
static void tell(const char *path, const char *why, enum opened opened,
                 const struct vgpu_limits *limits) {
    vgpu_log_write("region %.200s %s: %s", path, why,
                   opened == OPENED   ? "its limits hold, and this process counts alone"
                   : limits->broken   ? "the environment has no limits either, allocations are refused"
                   : limits->enforced ? "the limits of the environment hold"
                                      : "nothing is limited");
}

void vgpu_shared_open(struct vgpu_limits *limits) {
    /* The fixed place first: a tenant chooses its environment more easily than its mounts. */
    const char *path = VGPU_REGION_LINK, *why;
    enum opened opened = open_region(path, limits, &why);
    bool fixed = opened != ABSENT, named = fixed;
    if (opened == ABSENT) {
        path = secure_getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
        named = path != NULL && path[0] != '\0';
        if (named) opened = open_region(path, limits, &why);
    }
    if (opened != OPENED) {
        vgpu_limits_from_environment(limits);
        if (fixed && !limits->enforced) limits->broken = limits->enforced = true;
    }
    if (named && why != NULL) tell(path, why, opened, limits);
    vgpu_killer_from_environment(limits);
    if (limits->enforced && extension == NULL) open_private();
    VGPU_LOG(VGPU_LOG_INFO, "limits from %s, device 0: %llu bytes",
             limits->from_region ? "the region" : limits->enforced ? "the environment" : "nowhere",
             (unsigned long long)limits->memory[0]);
}

/* At first use, and after a program closed all its descriptors. */
static bool open_lock_file(void) {
    if (lock_path[0] == '\0') { /* private: what was shared with relatives is lost */
        extension = NULL; /* not unmapped: launches of other threads count in it */
        open_private();
        return extension != NULL && lock_file_is_open();
    }
    int fd = vgpu_open(lock_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd == -ENOENT) { /* the plugin makes it; without one, for every user of the container */
        fd = vgpu_open(lock_path, O_RDWR | O_CLOEXEC | O_CREAT | O_NOFOLLOW, 0666);
        if (fd >= 0) vgpu_sys(SYS_fchmod, fd, 0666, 0, 0, 0, 0);
    }
    return adopt_lock_file(fd);
}

/* --- record locks ------------------------------------------------------------ */

static int change_lock(short type, int command, long byte) {
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    for (;;) {
        int result = vgpu_fcntl(lock_fd, command, (long)&lock);
        if (result != -EINTR) return result;
    }
}

static bool try_lock(long byte) { return change_lock(F_WRLCK, F_SETLK, byte) == 0; }
static void unlock(long byte) { change_lock(F_UNLCK, F_SETLK, byte); }

bool vgpu_shared_lock(int device) {
    int result = change_lock(F_WRLCK, F_SETLKW, VGPU_LOCK_ACCOUNT + device);
    if (result != 0) VGPU_LOG(VGPU_LOG_ERROR, "accounting lock failed: errno %d", -result);
    return result == 0;
}

void vgpu_shared_unlock(int device) { unlock(VGPU_LOCK_ACCOUNT + device); }

/* --- records ------------------------------------------------------------------ */

#define LOAD(field) atomic_load_explicit((_Atomic uint64_t *)&(field), memory_order_acquire)
#define STORE(field, value)                                                                        \
    atomic_store_explicit((_Atomic uint64_t *)&(field), (value), memory_order_release)

static uint32_t records_used(void) {
    uint32_t count = atomic_load((_Atomic uint32_t *)&extension->record_count);
    return count > VGPU_MAX_PROCESSES ? VGPU_MAX_PROCESSES : count;
}

/* Empties a record whose lock we hold. HAMi's slot of the same number goes with it. */
static void wipe(int i) {
    struct vgpu_process_record *entry = &extension->records[i];
    for (int d = 0; d < VGPU_MAX_DEVICES; d++) {
        STORE(entry->use[d].context_bytes, 0);
        STORE(entry->use[d].module_bytes, 0);
        STORE(entry->use[d].buffer_bytes, 0);
        STORE(entry->use[d].launches, 0);
        STORE(entry->use[d].granted_ns, 0);
        STORE(entry->use[d].waited_budget_ns, 0);
        STORE(entry->use[d].waited_queue_ns, 0);
        STORE(entry->use[d].waited_priority_ns, 0);
    }
    STORE(entry->active_ns, 0);
    entry->active_devices = 0;
    entry->last_error = 0;
    struct hami_process_slot *slot = &hami->slots[i];
    slot->pid = 0;
    slot->status = 0;
    memset(slot->used, 0, sizeof slot->used);
    STORE(slot->sequence, (slot->sequence + 1) & ~1ull); /* a dead writer may have left it odd */
}

/* Takes back the records of dead processes. Never tests our own byte: taking a lock that
 * one holds succeeds, and giving it back would drop it. */
static void sweep_records(void) {
    for (int i = 0, used = (int)records_used(); i < used; i++) {
        if (i == record || !(LOAD(extension->records[i].generation) & 1) || !try_lock(i)) continue;
        uint64_t generation = LOAD(extension->records[i].generation);
        if (generation & 1) {
            VGPU_LOG(VGPU_LOG_INFO, "record %d of dead process %d taken back", i,
                     extension->records[i].pid);
            wipe(i);
            STORE(extension->records[i].generation, generation + 1);
        }
        unlock(i);
    }
}

static void raise_count(int i) {
    uint32_t seen = atomic_load((_Atomic uint32_t *)&extension->record_count);
    while (seen < (uint32_t)i + 1 &&
           !atomic_compare_exchange_weak((_Atomic uint32_t *)&extension->record_count, &seen,
                                         (uint32_t)i + 1)) {
    }
    int32_t slots = atomic_load((_Atomic int32_t *)&hami->slot_count);
    while (slots < i + 1 &&
           !atomic_compare_exchange_weak((_Atomic int32_t *)&hami->slot_count, &slots, i + 1)) {
    }
}

static bool claim(int i) {
    struct vgpu_process_record *entry = &extension->records[i];
    if (!try_lock(i)) return false;
    wipe(i);
    record_generation = (LOAD(entry->generation) + 1) | 1;
    entry->pid = vgpu_getpid();
    entry->flags = 0;
    struct timespec now = {0, 0};
    vgpu_sys(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&now, 0, 0, 0, 0);
    entry->started_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    hami->slots[i].pid = entry->pid;
    hami->slots[i].host_pid = 0;
    hami->slots[i].status = 1;
    STORE(entry->generation, record_generation);
    raise_count(i);
    record = i;
    return true;
}

static bool claim_any(void) {
    for (int i = 0; i < VGPU_MAX_PROCESSES; i++) /* free ones */
        if (!(LOAD(extension->records[i].generation) & 1) && claim(i)) return true;
    for (int i = 0; i < VGPU_MAX_PROCESSES; i++) /* else those of dead processes */
        if (claim(i)) return true;
    static bool told;
    if (!told) /* once; it tries again at every call */
        vgpu_log_write("all %d process records of the container are taken: this process gets no "
                       "device memory until another one ends", VGPU_MAX_PROCESSES);
    told = true;
    return false;
}

void vgpu_shared_forked(void) { record = RECORD_NONE; }

bool vgpu_shared_present(void) {
    return extension != NULL && record != RECORD_NONE &&
           vgpu_clock_coarse() - joined_at < TRUSTED_NS &&
           LOAD(extension->records[record].generation) == record_generation &&
           lock_file_is_open();
}

bool vgpu_shared_join(const struct vgpu_device_use holdings[VGPU_MAX_DEVICES]) {
    if (extension == NULL) return false;
    if (!lock_file_is_open() && !open_lock_file()) return false;
    /* Taking a lock that one holds changes nothing; taking it again where a program closed
     * our descriptor (or one of its own of this file) repairs it, unless the record went
     * to somebody else in between. */
    if (record != RECORD_NONE && try_lock(record)) {
        if (LOAD(extension->records[record].generation) == record_generation) {
            joined_at = vgpu_clock_coarse();
            return true;
        }
        unlock(record);
    }
    record = RECORD_NONE;
    if (!claim_any()) return false;
    joined_at = vgpu_clock_coarse();
    for (int d = 0; d < VGPU_MAX_DEVICES; d++) vgpu_shared_publish(d, &holdings[d]);
    return true;
}

static uint64_t add(uint64_t a, uint64_t b) { /* others' figures may be anything */
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

uint64_t vgpu_shared_others(int device, bool sweep) {
    if (sweep) sweep_records();
    uint64_t sum = 0;
    for (int i = 0, used = (int)records_used(); i < used; i++) {
        struct vgpu_process_record *entry = &extension->records[i];
        if (i == record || !(LOAD(entry->generation) & 1)) continue;
        sum = add(sum, LOAD(entry->use[device].context_bytes));
        sum = add(sum, LOAD(entry->use[device].module_bytes));
        sum = add(sum, LOAD(entry->use[device].buffer_bytes));
    }
    return sum;
}

uint64_t vgpu_shared_context_bytes(int device) {
    uint64_t largest = 0;
    for (int i = 0, used = (int)records_used(); i < used; i++) {
        uint64_t bytes = LOAD(extension->records[i].use[device].context_bytes);
        if (bytes > largest) largest = bytes;
    }
    return largest;
}

void vgpu_shared_publish(int device, const struct vgpu_device_use *use) {
    if (record == RECORD_NONE) return;
    struct vgpu_device_use *own = &extension->records[record].use[device];
    STORE(own->context_bytes, use->context_bytes);
    STORE(own->module_bytes, use->module_bytes);
    STORE(own->buffer_bytes, use->buffer_bytes);
    struct hami_process_slot *slot = &hami->slots[record];
    struct hami_device_memory *mirror = &slot->used[device];
    uint64_t sequence = slot->sequence | 1; /* odd = a writer is inside */
    STORE(slot->sequence, sequence);
    STORE(mirror->context_bytes, use->context_bytes);
    STORE(mirror->module_bytes, use->module_bytes);
    STORE(mirror->buffer_bytes, use->buffer_bytes);
    STORE(mirror->total_bytes, use->context_bytes + use->module_bytes + use->buffer_bytes);
    STORE(slot->sequence, sequence + 1);
}

void vgpu_shared_denied(int device) {
    if (extension != NULL)
        atomic_fetch_add((_Atomic uint64_t *)&extension->denied[device], 1);
}

/* --- who they are -------------------------------------------------------------- */

/* The owner of a record lock as the kernel names it here: 0 = nobody, or out of sight. */
static uint32_t owner(int i) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = i, .l_len = 1};
    if (vgpu_fcntl(lock_fd, F_GETLK, (long)&lock) != 0 || lock.l_type == F_UNLCK) return 0;
    return lock.l_pid > 0 ? (uint32_t)lock.l_pid : 0;
}

int vgpu_shared_members(int device, struct vgpu_member members[VGPU_MAX_PROCESSES]) {
    int found = 0;
    for (int i = 0, used = (int)records_used(); i < used; i++) {
        struct vgpu_process_record *entry = &extension->records[i];
        if (!(LOAD(entry->generation) & 1)) continue;
        uint64_t bytes = add(LOAD(entry->use[device].context_bytes),
                             add(LOAD(entry->use[device].module_bytes),
                                 LOAD(entry->use[device].buffer_bytes)));
        uint32_t pid = i == record ? (uint32_t)vgpu_getpid() : owner(i);
        if (pid != 0 && bytes != 0)
            members[found++] = (struct vgpu_member){.pid = pid, .bytes = bytes};
    }
    return found;
}

/* --- what no process accounts for ------------------------------------------------ */

static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t beyond(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

bool vgpu_shared_new_reading(int device) {
    uint64_t stamp = LOAD(extension->feedback[device].bytes_ns);
    return stamp != 0 && stamp != LOAD(extension->ledgers[device].reading_ns);
}

uint64_t vgpu_shared_unexplained_known(int device) {
    return LOAD(extension->ledgers[device].unexplained_bytes);
}

/* A reading is older than our figures, so it is held against all that they were meanwhile:
 * what the card had beyond them was at least its count less their highest sum, at most its
 * count less their lowest. Within these bounds the last figure stands. */
uint64_t vgpu_shared_unexplained(int device, uint64_t sum) {
    struct vgpu_ledger *ledger = &extension->ledgers[device];
    struct vgpu_feedback *entry = &extension->feedback[device];
    uint64_t stamp = LOAD(entry->bytes_ns), bytes = LOAD(entry->own_bytes);
    if (!vgpu_shared_new_reading(device) || LOAD(entry->bytes_ns) != stamp)
        return LOAD(ledger->unexplained_bytes);
    uint64_t high = most(sum, most(ledger->highest_bytes[0],
                                   most(ledger->highest_bytes[1], ledger->highest_bytes[2])));
    uint64_t low = least(sum, least(ledger->lowest_bytes[0],
                                    least(ledger->lowest_bytes[1], ledger->lowest_bytes[2])));
    uint64_t now = most(LOAD(ledger->unexplained_bytes), beyond(bytes, high));
    now = least(now, beyond(bytes, low));
    if (now != ledger->unexplained_bytes)
        VGPU_LOG(VGPU_LOG_INFO, "device %d: the card counts %llu bytes beyond ours", device,
                 (unsigned long long)now);
    STORE(ledger->unexplained_bytes, now);
    for (int i = 2; i > 0; i--) {
        STORE(ledger->highest_bytes[i], ledger->highest_bytes[i - 1]);
        STORE(ledger->lowest_bytes[i], ledger->lowest_bytes[i - 1]);
    }
    STORE(ledger->highest_bytes[0], sum);
    STORE(ledger->lowest_bytes[0], sum);
    STORE(ledger->reading_ns, stamp);
    return now;
}

void vgpu_shared_summed(int device, uint64_t sum) {
    _Atomic uint64_t *high = (_Atomic uint64_t *)&extension->ledgers[device].highest_bytes[0];
    _Atomic uint64_t *low = (_Atomic uint64_t *)&extension->ledgers[device].lowest_bytes[0];
    uint64_t seen = atomic_load(high);
    while (sum > seen && !atomic_compare_exchange_weak(high, &seen, sum)) {
    }
    seen = atomic_load(low);
    while (sum < seen && !atomic_compare_exchange_weak(low, &seen, sum)) {
    }
}

struct vgpu_extension *vgpu_shared_extension(void) { return extension; }

#define FRESH_NS 2000000000ull

bool vgpu_shared_own_use(int device, uint32_t *per_mille) {
    if (extension == NULL || device < 0) return false;
    struct vgpu_feedback *entry = &extension->feedback[device];
    uint64_t stamp = LOAD(entry->stamp_ns), now = (uint64_t)vgpu_clock();
    /* Acquired: the stamp is not looked at again before. */
    uint32_t own =
        atomic_load_explicit((_Atomic uint32_t *)&entry->own_util_pm, memory_order_acquire);
    if (stamp == 0 || stamp > now || now - stamp > FRESH_NS || own > 1000 ||
        LOAD(entry->stamp_ns) != stamp)
        return false;
    *per_mille = own;
    return true;
}

struct vgpu_process_record *vgpu_shared_record(void) {
    if (extension == NULL || record == RECORD_NONE) return NULL;
    struct vgpu_process_record *own = &extension->records[record];
    return LOAD(own->generation) == record_generation ? own : NULL;
}

/* Whether the constant part was changed as a whole since `seen`. */
static bool renewed(const struct vgpu_limits *limits, uint64_t *seen,
                    struct vgpu_constant *copy) {
    if (extension == NULL || !limits->from_region) return false;
    uint64_t checksum = LOAD(extension->checksum);
    if (checksum == *seen) return false;
    if (!valid(extension, copy) || copy->device_count != limits->count)
        return false; /* in the middle of a change, or spoiled: what held, holds */
    *seen = checksum;
    return true;
}

bool vgpu_shared_compute(struct vgpu_limits *limits, uint64_t *seen) {
    struct vgpu_constant copy;
    if (!renewed(limits, seen, &copy)) return false;
    vgpu_compute_from_constant(limits, &copy);
    return true;
}

bool vgpu_shared_memory(struct vgpu_limits *limits, uint64_t *seen) {
    struct vgpu_constant copy;
    if (!renewed(limits, seen, &copy)) return false;
    vgpu_memory_from_constant(limits, &copy);
    return true;
}
