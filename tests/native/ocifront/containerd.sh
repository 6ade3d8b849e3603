# Inside namespaces of one id: a containerd with nothing but the front, and one container.
# Arguments: binaries, front, archive, image name, command...
set -eu
binaries=$1 front=$2 archive=$3 image=$4
shift 4
export PATH="$binaries:/usr/sbin:/usr/bin:/sbin:/bin"
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
ip link set lo up
cat > /run/config.toml <<EOF
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd.sock"
EOF
containerd -c /run/config.toml > "$HOME/containerd.log" 2>&1 &
ctr="ctr -a /run/containerd.sock -n k8s.io"
until $ctr version > /dev/null 2>&1; do
  kill -0 $! || exit 1
  sleep 0.05
done
$ctr images import --no-unpack "$archive" > "$HOME/import.log" 2>&1
exec $ctr run --rm --snapshotter overlayfs --runc-binary "$front" \
  --annotation io.kubernetes.cri.container-type=container \
  --annotation "io.kubernetes.cri.image-name=$image" \
  "docker.io/$image" test "$@" < /dev/null
