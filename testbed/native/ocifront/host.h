/* What this process may hand on to a container: asked of the kernel, changed nowhere else. */
#ifndef OCIFRONT_HOST_H
#define OCIFRONT_HOST_H

#include <stdbool.h>

/* False only for a capability that the kernel knows and this process cannot give. */
bool host_may_give(const char *capability);
/* The highest hard limit of that name, up to `wanted`, that may be set. */
unsigned long long host_hard_limit(const char *name, unsigned long long wanted);
/* The lowest OOM score that may be set for sure: this process' own. */
long long host_oom_score(void);
/* Whether the id exists in this user namespace. */
bool host_has_gid(unsigned long long gid);

#endif
