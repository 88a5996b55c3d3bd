# Writes a cluster's keys and configuration; sourced by up.sh. Needs folder, bin, name, cgroup, node_ip, host_ip and pods.
# shellcheck shell=bash
# shellcheck disable=SC2154 # up.sh and lib.sh set them

# certificate NAME SUBJECT [EXTENSION]: a key, and a certificate that the cluster's own authority signs.
certificate() {
    local at=$folder/pki/$1
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj "$2" \
        -CA "$folder/pki/ca.crt" -CAkey "$folder/pki/ca.key" -keyout "$at.key" -out "$at.crt" \
        -addext basicConstraints=critical,CA:FALSE -addext "$3" 2>/dev/null
}

write_keys() {
    local pki=$folder/pki
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=gpu-handoff-e2e \
        -keyout "$pki/ca.key" -out "$pki/ca.crt" -addext keyUsage=critical,keyCertSign,digitalSignature 2>/dev/null
    certificate apiserver /CN=kube-apiserver "subjectAltName=IP:$node_ip,IP:$api_service_ip,IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
    certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client extendedKeyUsage=clientAuth
    openssl genrsa -out "$pki/sa.key" 2048 2>/dev/null
    openssl rsa -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2>/dev/null
    echo "$(openssl rand -hex 16),admin,admin,system:masters" > "$pki/tokens.csv"
}

# One file for everybody: the daemons, people, and tests on this machine, for all of whom the address is the same.
write_kubeconfig() {
    cat > "$folder/kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: $name, cluster: {server: "https://$node_ip:$api_port", certificate-authority-data: $(base64 -w 0 "$folder/pki/ca.crt")}}]
users: [{name: admin, user: {token: $(cut -d , -f 1 "$folder/pki/tokens.csv")}}]
contexts: [{name: $name, context: {cluster: $name, user: admin}}]
current-context: $name
YAML
}

# Nearly everything stays where it is by default: the node has a /run and a /var/lib of its own.
write_containerd() {
    cat > "$folder/containerd.toml" <<TOML
version = 3
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "e2e.local/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true # where CAP_SYS_RESOURCE is missing, every sandbox would fail
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "$bin/runc"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$bin"]
    conf_dir = "$folder/cni"
TOML
    cat > "$folder/cni/10-pods.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON
}

write_kubelet() {
    cat > "$folder/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
readOnlyPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $folder/pki/ca.crt}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
enforceNodeAllocatable: [pods]
failSwapOn: false
makeIPTablesUtilChains: false
protectKernelDefaults: true # what it wants to see is shown to it (node.sh); this machine's stays as it is
oomScoreAdj: 0
resolvConf: ""
evictionHard: {memory.available: 50Mi, nodefs.available: 200Mi, imagefs.available: 200Mi} # below what preflight.sh asks for
imageGCHighThresholdPercent: 100
volumePluginDir: /var/lib/kubelet/volume-plugins # which it makes
staticPodPath: $folder/static-pods
YAML
}
