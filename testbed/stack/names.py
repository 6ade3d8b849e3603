"""Names that the parts of the stack and its users agree on.

Annotations, labels, resources and environment variables are HAMi's (v2.10), so
that pod specs, dashboards and tools written for it work unchanged; the paths in
the container and on the node are our own (docs/architecture.md).
"""

from __future__ import annotations

# --- Kubernetes ------------------------------------------------------------
SCHEDULER_NAME = "vgpu-scheduler"
NAMESPACE = "vgpu-testbed"

RESOURCE_COUNT = "nvidia.com/gpu"
RESOURCE_MEMORY = "nvidia.com/gpumem"
RESOURCE_MEMORY_PERCENTAGE = "nvidia.com/gpumem-percentage"
RESOURCE_CORES = "nvidia.com/gpucores"
RESOURCE_PRIORITY = "nvidia.com/priority"

NODE_REGISTER = "hami.io/node-nvidia-register"
NODE_SCORE = "hami.io/node-nvidia-score"
NODE_HANDSHAKE = "hami.io/node-handshake"
NODE_LOCK = "hami.io/mutex.lock"
DEVICE_CORDON = "hami.io/device-cordon"
#: An operator's word that cards are well again: uuids with commas, or ``all``. The
#: plugin takes it away when it has heeded it.
NODE_CARDS_RECOVERED = "vgpu-testbed.dev/cards-recovered"

POD_NODE = "hami.io/vgpu-node"
POD_TIME = "hami.io/vgpu-time"
POD_TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
POD_ALLOCATED = "hami.io/vgpu-devices-allocated"
POD_BIND_PHASE = "hami.io/bind-phase"
POD_BIND_TIME = "hami.io/bind-time"

#: When the extender last asked the scheduler to try a waiting pod again, unix seconds.
POD_ROOM_MADE = "vgpu-testbed.dev/room-made"

POD_MIG = "hami.io/vgpu-mig-allocations"
SCHEDULER_ROLE = "hami.io/scheduler-role"  # label: leader or follower

#: Keys of pods, annotations and labels alike, that only extender and plugin may write:
#: kubelets hand out what they say (HAMi #3042, #3074).
STACK_ANNOTATIONS = (
    POD_NODE,
    POD_TIME,
    POD_TO_ALLOCATE,
    POD_ALLOCATED,
    POD_BIND_PHASE,
    POD_BIND_TIME,
    POD_MIG,
    POD_ROOM_MADE,
    SCHEDULER_ROLE,
)

#: Annotations of nodes that only the stack may write, likewise.
STACK_NODE_ANNOTATIONS = (NODE_REGISTER, NODE_HANDSHAKE, NODE_SCORE, NODE_LOCK)

PHASE_ALLOCATING = "allocating"
PHASE_SUCCESS = "success"
PHASE_FAILED = "failed"

USE_TYPE = "nvidia.com/use-gputype"
NOUSE_TYPE = "nvidia.com/nouse-gputype"
USE_UUID = "nvidia.com/use-gpuuuid"
NOUSE_UUID = "nvidia.com/nouse-gpuuuid"
NUMA_BIND = "nvidia.com/numa-bind"
VGPU_MODE = "nvidia.com/vgpu-mode"
NODE_POLICY = "hami.io/node-scheduler-policy"
CARD_POLICY = "hami.io/gpu-scheduler-policy"
CARD_WEIGHTS = "hami.io/device-scoring-weights"

WEBHOOK_LABEL = "hami.io/webhook"
WEBHOOK_IGNORE = "ignore"
#: Label of a namespace, for administrators: ``allowed`` leaves the library's variables
#: (``ENV_LIBRARY``) as its pods set them.
OWN_ENVIRONMENT_LABEL = "vgpu-testbed.dev/own-environment"
OWN_ENVIRONMENT_ALLOWED = "allowed"

#: Certificates of a deployment: secrets of its namespace, and the annotation of the
#: scheduler's pods that rolls them when theirs are others.
SECRET_WEBHOOK = "vgpu-webhook-tls"
SECRET_EXTENDER = "vgpu-extender-tls"
SECRET_SCHEDULER = "vgpu-scheduler-client"
CA_KEY, CERT_KEY, KEY_KEY = "ca.crt", "tls.crt", "tls.key"
ANNOTATION_CERTIFICATES = "vgpu-testbed.dev/certificates"

# --- Container environment -------------------------------------------------
ENV_MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"  # and _<i>, MiB with suffix m
ENV_SM_LIMIT = "CUDA_DEVICE_SM_LIMIT"  # percent
ENV_SHARED_CACHE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
ENV_CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
ENV_PRIORITY = "CUDA_TASK_PRIORITY"
ENV_OVERSUBSCRIBE = "CUDA_OVERSUBSCRIBE"
ENV_LOG_LEVEL = "LIBCUDA_LOG_LEVEL"
ENV_DISABLE_CONTROL = "CUDA_DISABLE_CONTROL"
ENV_PAGE_FOLDER = "VGPU_PAGE_FOLDER"
ENV_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
#: Its value by which NVIDIA's runtime adds no card of its own accord.
VISIBLE_VOID = "void"
#: What tells the library its limits; those of ``ENV_LIMITS`` also with ``_<i>``.
ENV_LIMITS = (ENV_MEMORY_LIMIT, ENV_SM_LIMIT)
ENV_LIBRARY = (
    *ENV_LIMITS,
    ENV_SHARED_CACHE,
    ENV_CORE_POLICY,
    ENV_PRIORITY,
    ENV_OVERSUBSCRIBE,
    ENV_LOG_LEVEL,
    ENV_DISABLE_CONTROL,
    ENV_PAGE_FOLDER,
)

# --- Paths in the container ------------------------------------------------
CONTAINER_ROOT = "/usr/local/vgpu"  # the container's own folder, read-write
CONTAINER_LIBRARY = f"{CONTAINER_ROOT}/libvgpu.so"
CONTAINER_REGION_LINK = f"{CONTAINER_ROOT}/region"  # -> <uuid>.cache
CONTAINER_DRIVER = f"{CONTAINER_ROOT}/driver"  # libcuda.so.1, libnvidia-ml.so.1
CONTAINER_CARDS = f"{CONTAINER_ROOT}/cards"  # <uuid>/state: a card is visible if mounted here
CONTAINER_PAGES = f"{CONTAINER_ROOT}/pages"  # <uuid>.page, shared by a card's containers
CONTAINER_PRELOAD = "/etc/ld.so.preload"

# --- Paths on the node -----------------------------------------------------
HOOK_PATH = "/var/lib/vgpu-testbed"  # default of the manifest value hookPath
#   lib/<build>/libvgpu.so     lib/<build>/ld.so.preload
#   containers/<podUID>_<container>/{<uuid>.cache, region -> <uuid>.cache}
#   pages/<card uuid>.page     health.json
EMULATED_DRIVER_ROOT = "/run/vgpu-emulated"
#   EMULATION (text mark)   driver/libcuda.so.1   driver/libnvidia-ml.so.1
#   cards/<uuid>/{state, cuda.lock, nvml.lock}
EMULATION_MARK = "EMULATION"
CDI_ROOT = "/var/run/cdi"
CDI_KIND = "vgpu-testbed.dev/gpu"
DEVICE_PLUGIN_ROOT = "/var/lib/kubelet/device-plugins"
DEVICE_PLUGIN_SOCKET = "nvidia-gpu.sock"
POD_RESOURCES_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"

# --- Ports -----------------------------------------------------------------
PORT_WEBHOOK = 8443
PORT_EXTENDER = 9443
PORT_EXTENDER_OBSERVE = 9395  # plain HTTP, read only: /healthz, /readyz, /debug/...
PORT_PLUGIN_HEALTH = 9396
PORT_MONITOR = 9394
