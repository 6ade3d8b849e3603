#define _GNU_SOURCE
#include "sharing.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x6572616873757056ull
/* Out of the way of programs that count on low numbers. */
#define FIRST_FD 400

static bool adopt(struct sharing *sharing, int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    struct stat status;
    if (fstat(fd, &status) != 0) {
        close(fd);
        return false;
    }
    *sharing = (struct sharing){.fd = fd, .device = status.st_dev, .inode = status.st_ino};
    return true;
}

bool sharing_make(struct sharing *sharing, const struct device *device, size_t bytes,
                  enum range_kind kind, const CUmemAllocationProp *properties)
{
    struct sharing_label label = {.magic = MAGIC, .bytes = bytes, .kind = kind};
    memcpy(label.card, device_description(device)->uuid, sizeof label.card);
    if (properties != NULL)
        label.properties = *properties;
    *sharing = (struct sharing){.fd = -1};
    int fd = memfd_create("vgpu-emulated-memory", MFD_CLOEXEC);
    if (fd < 0) {
        emu_log(EMU_LOG_ERROR, "memory to share: %s", strerror(errno));
        return false;
    }
    if (ftruncate(fd, (off_t)(bytes + CARD_PAGE)) != 0 ||
        pwrite(fd, &label, sizeof label, (off_t)bytes) != sizeof label) {
        emu_log(EMU_LOG_ERROR, "memory to share: %s", strerror(errno));
        close(fd);
        return false;
    }
    return adopt(sharing, fd);
}

bool sharing_take(struct sharing *sharing, int fd, struct sharing_label *label)
{
    struct stat status;
    *sharing = (struct sharing){.fd = -1};
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= CARD_PAGE ||
        pread(fd, label, sizeof *label, status.st_size - CARD_PAGE) != sizeof *label ||
        label->magic != MAGIC || label->bytes != (uint64_t)status.st_size - CARD_PAGE ||
        label->bytes % CARD_PAGE != 0 || label->card[sizeof label->card - 1] != '\0') {
        close(fd);
        return false;
    }
    return adopt(sharing, fd);
}

bool sharing_ready(const struct sharing *sharing)
{
    struct stat status;
    return sharing->fd >= 0 && fstat(sharing->fd, &status) == 0 &&
           status.st_dev == sharing->device && status.st_ino == sharing->inode;
}

void sharing_close(struct sharing *sharing)
{
    if (sharing_ready(sharing))
        close(sharing->fd);
    sharing->fd = -1;
}

struct device *sharing_device(const struct sharing_label *label)
{
    for (int i = 0; i < device_count; i++)
        if (strcmp(device_description(&devices[i])->uuid, label->card) == 0)
            return &devices[i];
    return NULL;
}
