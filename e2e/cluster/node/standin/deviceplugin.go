package standin

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource       = "nvidia.com/gpu"
	pluginSocket   = "nvidia-gpu.sock"
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	registerWithin = 5 * time.Second
	registerAgain  = 20 * time.Millisecond
)

// DevicePlugin offers a machine's GPUs as `nvidia.com/gpu`, as NVIDIA's device plugin does: a device's ID is the GPU's
// UUID, or `UUID::n` for each of several replicas where GPUs are shared by time-slicing.
type DevicePlugin struct {
	api.UnimplementedDevicePluginServer
	GPUs     []GPU
	Replicas int
	// Folder is the kubelet's for device plugins.
	Folder string
}

// Run serves until the context ends, and registers again with each kubelet that comes up.
func (p *DevicePlugin) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := os.MkdirAll(p.Folder, 0o755); err != nil {
		return err
	}
	if err := watcher.Add(p.Folder); err != nil {
		return fmt.Errorf("watch %s: %w", p.Folder, err)
	}
	for {
		again, err := p.serveOneKubelet(ctx, watcher)
		if err != nil || !again {
			return err
		}
		slog.Info("a new kubelet is there")
	}
}

// serveOneKubelet returns true when a kubelet made its socket: it removed ours then, and forgot that we registered.
func (p *DevicePlugin) serveOneKubelet(ctx context.Context, watcher *fsnotify.Watcher) (bool, error) {
	own, kubelet := filepath.Join(p.Folder, pluginSocket), filepath.Join(p.Folder, "kubelet.sock")
	listener, err := listen(own)
	if err != nil {
		return false, err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		<-served
	}()
	// A kubelet's socket is there before it listens, or after it is gone. Within a second after it listens it admits all pods, and
	// those with GPUs fail if it does not know the devices yet: so there is no pause to speak of.
	attempt := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-attempt:
			if err := register(ctx, kubelet); err != nil {
				attempt = time.After(registerAgain)
			} else {
				attempt = nil
				slog.Info("registered", "resource", resource)
			}
		case event := <-watcher.Events:
			if event.Name == kubelet && event.Has(fsnotify.Create) {
				return true, nil
			}
		case err := <-watcher.Errors:
			return false, err
		}
	}
}

func register(ctx context.Context, kubelet string) error {
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, registerWithin)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: pluginSocket, ResourceName: resource}
	_, err = api.NewRegistrationClient(connection).Register(ctx, request)
	return err
}

// GetDevicePluginOptions says that nothing optional is done.
func (p *DevicePlugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch tells the devices once: none is ever lost here.
func (p *DevicePlugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	var devices []*api.Device
	for _, gpu := range p.GPUs {
		for replica := range max(p.Replicas, 1) {
			devices = append(devices, &api.Device{ID: p.id(gpu, replica), Health: api.Healthy})
		}
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *DevicePlugin) id(gpu GPU, replica int) string {
	if p.Replicas <= 1 {
		return gpu.UUID
	}
	return gpu.UUID + "::" + strconv.Itoa(replica)
}

// Allocate gives each container its GPUs, each once, however many of its replicas the container holds.
func (p *DevicePlugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		gpus, err := chosen(p.GPUs, container.DevicesIds)
		if err != nil {
			return nil, err
		}
		slog.Info("allocated", "devices", container.DevicesIds)
		response.ContainerResponses = append(response.ContainerResponses, answer(gpus))
	}
	return response, nil
}

// chosen finds the GPUs of some devices' IDs, in the driver's order.
func chosen(all []GPU, ids []string) ([]GPU, error) {
	var gpus []GPU
	for _, gpu := range all {
		if slices.ContainsFunc(ids, func(id string) bool { return uuidOf(id) == gpu.UUID }) {
			gpus = append(gpus, gpu)
		}
	}
	for _, id := range ids {
		if !slices.ContainsFunc(gpus, func(gpu GPU) bool { return gpu.UUID == uuidOf(id) }) {
			return nil, fmt.Errorf("there is no device %s", id)
		}
	}
	return gpus, nil
}

func uuidOf(id string) string {
	uuid, _, _ := strings.Cut(id, "::")
	return uuid
}

func answer(gpus []GPU) *api.ContainerAllocateResponse {
	var uuids []string
	response := &api.ContainerAllocateResponse{}
	for _, gpu := range gpus {
		uuids = append(uuids, gpu.UUID)
		response.CdiDevices = append(response.CdiDevices, &api.CDIDevice{Name: cdiName(gpu)})
	}
	response.Envs = map[string]string{visibleDevices: strings.Join(uuids, ",")}
	return response
}
