"""gRPC stubs of kubelet's device plugin and PodResources services; generated, never edited.

Made from ``pkg/apis/{deviceplugin/v1beta1,podresources/v1}/api.proto`` of the Go
module ``k8s.io/kubelet`` v0.37.2 (Copyright The Kubernetes Authors, Apache License
2.0, https://www.apache.org/licenses/LICENSE-2.0; the texts of the services are
theirs). To make them again, with the dev environment active, from the root of the
repository::

    kubelet=$(go env GOMODCACHE)/k8s.io/kubelet@v0.37.2/pkg/apis
    work=$(mktemp -d) && mkdir -p $work/testbed/stack/plugin/api
    cp $kubelet/deviceplugin/v1beta1/api.proto $work/testbed/stack/plugin/api/deviceplugin.proto
    cp $kubelet/podresources/v1/api.proto $work/testbed/stack/plugin/api/podresources.proto
    python -m grpc_tools.protoc -I$work --python_out=. --pyi_out=. --grpc_python_out=. \
        $work/testbed/stack/plugin/api/*.proto
"""
