package standin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const csiName = "slots.e2e.local"

// CSIDriver gives each pod that asks for it an inline volume: a folder of its own, named by the pod's UID, which the kubelet
// tells. It is here to learn what restarts do to such volumes, beside devices and claims.
type CSIDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	registration.UnimplementedRegistrationServer
	Node string
	// Slots is where the pods' folders lie.
	Slots string
	// Kubelet is the kubelet's own folder.
	Kubelet string
}

// Run serves until the context ends: the kubelet's questions, and its plugin watcher's.
func (d *CSIDriver) Run(ctx context.Context) error {
	services, err := listen(d.socket())
	if err != nil {
		return err
	}
	registry, err := listen(filepath.Join(d.Kubelet, "plugins_registry", csiName+"-reg.sock"))
	if err != nil {
		return errors.Join(err, services.Close())
	}
	server, registrar := grpc.NewServer(), grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	registration.RegisterRegistrationServer(registrar, d)
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(services) }()
	go func() { ended <- registrar.Serve(registry) }()
	select {
	case err = <-ended:
		ended <- nil
	case <-ctx.Done():
	}
	registrar.Stop()
	server.Stop()
	return errors.Join(err, <-ended, <-ended)
}

func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return net.Listen("unix", socket)
}

func (d *CSIDriver) socket() string { return filepath.Join(d.Kubelet, "plugins", csiName, "csi.sock") }

// ---- what the plugin watcher asks ----

// GetInfo says what this is.
func (d *CSIDriver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: csiName, Endpoint: d.socket(), SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus hears how it went.
func (d *CSIDriver) NotifyRegistrationStatus(_ context.Context, told *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	slog.Info("registered", "well", told.PluginRegistered, "error", told.Error)
	return &registration.RegistrationStatusResponse{}, nil
}

// ---- what the kubelet asks ----

// GetPluginInfo says what this is.
func (d *CSIDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: csiName, VendorVersion: "1"}, nil
}

// NodeGetInfo says where this is.
func (d *CSIDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.Node}, nil
}

// NodeGetCapabilities says that nothing optional is done.
func (d *CSIDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// NodePublishVolume binds the pod's folder to where its volume is to be. The kubelet asks again after a restart.
func (d *CSIDriver) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	pod := request.VolumeContext["csi.storage.k8s.io/pod.uid"]
	if pod == "" {
		return nil, status.Error(codes.InvalidArgument, "the kubelet does not say whose volume it is: podInfoOnMount")
	}
	slot := filepath.Join(d.Slots, pod)
	slog.Info("publish", "pod", request.VolumeContext["csi.storage.k8s.io/pod.name"], "uid", pod)
	for _, folder := range []string{slot, request.TargetPath} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, err
		}
	}
	if is, err := sameFolder(slot, request.TargetPath); err != nil || is {
		return &csi.NodePublishVolumeResponse{}, err
	}
	if err := syscall.Mount(slot, request.TargetPath, "", syscall.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("bind %s to %s: %w", slot, request.TargetPath, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func sameFolder(one, other string) (bool, error) {
	first, err := os.Stat(one)
	if err != nil {
		return false, err
	}
	second, err := os.Stat(other)
	return err == nil && os.SameFile(first, second), err
}

// NodeUnpublishVolume undoes that.
func (d *CSIDriver) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	slog.Info("unpublish", "target", request.TargetPath)
	if err := syscall.Unmount(request.TargetPath, syscall.MNT_DETACH); err != nil && err != syscall.EINVAL && err != syscall.ENOENT {
		return nil, err
	}
	if err := os.Remove(request.TargetPath); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
