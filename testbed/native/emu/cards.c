#define _GNU_SOURCE
#include "cards.h"

#include "log.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint64_t emu_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

bool emu_uuid_bytes(const char *text, unsigned char bytes[16])
{
    if (strncmp(text, "GPU-", 4) != 0)
        return false;
    int digits = 0;
    memset(bytes, 0, 16);
    for (const char *at = text + 4; *at != '\0'; at++) {
        if (*at == '-')
            continue;
        if (!isxdigit((unsigned char)*at) || digits == 32)
            return false;
        int value = isdigit((unsigned char)*at) ? *at - '0'
                                                : tolower((unsigned char)*at) - 'a' + 10;
        bytes[digits / 2] = (unsigned char)(bytes[digits / 2] << 4 | value);
        digits++;
    }
    return digits == 32;
}

static struct card_state *map_state(const char *path, bool writable)
{
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    if (fd < 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            emu_log(EMU_LOG_ERROR, "%s: %s", path, strerror(errno));
        return NULL;
    }
    struct stat information;
    void *map = MAP_FAILED;
    if (fstat(fd, &information) == 0 && information.st_size >= (off_t)sizeof(struct card_state))
        map = mmap(NULL, sizeof(struct card_state), writable ? PROT_READ | PROT_WRITE : PROT_READ,
                   MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) {
        emu_log(EMU_LOG_ERROR, "%s: too short or not mappable", path);
        return NULL;
    }
    struct card_state *state = map;
    if (__atomic_load_n(&state->magic, __ATOMIC_ACQUIRE) != CARD_MAGIC ||
        state->version != CARD_VERSION || state->bytes != sizeof(struct card_state)) {
        emu_log(EMU_LOG_ERROR, "%s: not a card state of version %u", path, CARD_VERSION);
        munmap(map, sizeof(struct card_state));
        return NULL;
    }
    return state;
}

static bool default_folder(char *path, size_t size, const void *symbol)
{
    Dl_info information;
    if (dladdr(symbol, &information) == 0 || information.dli_fname == NULL)
        return false;
    const char *slash = strrchr(information.dli_fname, '/');
    if (slash == NULL)
        return false;
    int length = (int)(slash - information.dli_fname);
    return snprintf(path, size, "%.*s/../cards", length, information.dli_fname) < (int)size;
}

static int by_index(const void *a, const void *b)
{
    const struct card_description *left = &((const struct emu_card *)a)->state->description;
    const struct card_description *right = &((const struct emu_card *)b)->state->description;
    if (left->index != right->index)
        return left->index < right->index ? -1 : 1;
    return strcmp(left->uuid, right->uuid);
}

int emu_cards_find(struct emu_card cards[EMU_MAX_CARDS], const void *symbol, bool writable)
{
    char named[400], folder[PATH_MAX];
    const char *given = getenv("VGPU_EMU_CARDS");
    if (given != NULL && *given != '\0')
        snprintf(named, sizeof named, "%s", given);
    else if (!default_folder(named, sizeof named, symbol))
        return 0;
    /* Absolute, since lock files may have to be opened again after a chdir. */
    if (realpath(named, folder) == NULL || strlen(folder) > 400) {
        emu_log(EMU_LOG_INFO, "no cards at %s: %s", named, strerror(errno));
        return 0;
    }
    DIR *listing = opendir(folder);
    if (listing == NULL) {
        emu_log(EMU_LOG_INFO, "no cards at %s: %s", folder, strerror(errno));
        return 0;
    }
    int count = 0;
    struct dirent *entry;
    while (count < EMU_MAX_CARDS && (entry = readdir(listing)) != NULL) {
        if (entry->d_name[0] == '.' || strlen(entry->d_name) > 63)
            continue;
        char path[512];
        struct emu_card *card = &cards[count];
        snprintf(card->folder, sizeof card->folder, "%.400s/%.63s", folder, entry->d_name);
        snprintf(path, sizeof path, "%s/state", card->folder);
        card->state = map_state(path, writable);
        if (card->state != NULL)
            count++;
    }
    closedir(listing);
    qsort(cards, (size_t)count, sizeof cards[0], by_index);
    return count;
}
