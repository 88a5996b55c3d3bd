package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// machine lays out the proc tree of simulated GPUs, whose minor numbers are not in the order of their buses.
func machine(t *testing.T, minors ...int) Simulated {
	t.Helper()
	folder := t.TempDir()
	for bus, minor := range minors {
		place := filepath.Join(folder, "machine/proc/driver/nvidia/gpus", fmt.Sprintf("0000:%02x:00.0", bus+1))
		if err := os.MkdirAll(place, 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("Model: \t\t H200\nGPU UUID: \t GPU-%d\nDevice Minor: \t %d\n", minor, minor)
		if err := os.WriteFile(filepath.Join(place, "information"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Simulated{Folder: folder}
}

func TestGPUsComeInTheDriversOrder(t *testing.T) {
	gpus, err := machine(t, 2, 0, 1).GPUs()
	if want := []GPU{{"GPU-0", 0}, {"GPU-1", 1}, {"GPU-2", 2}}; err != nil || !slices.Equal(gpus, want) {
		t.Errorf("%v, %v; not %v", gpus, err, want)
	}
}

func TestMissingFactsAreErrors(t *testing.T) {
	if _, err := machine(t).GPUs(); err == nil || !strings.Contains(err.Error(), "no GPU") {
		t.Errorf("no GPU, but: %v", err)
	}
	for _, text := range []string{"", "GPU UUID: GPU-1\n", "Device Minor: 1\n", "GPU UUID: GPU-1\nDevice Minor: x\n"} {
		if gpu, err := parse(text); err == nil {
			t.Errorf("%q gives %v", text, gpu)
		}
	}
}

func TestTheSpecGivesEachGPUItsOwnNodeOnly(t *testing.T) {
	folder := t.TempDir()
	if _, err := WriteSpec(machine(t, 0, 1), folder); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, cdiFile))
	if err != nil {
		t.Fatal(err)
	}
	var spec cdi.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	if len(spec.Devices) != 2 || spec.Devices[1].Name != "GPU-1" {
		t.Fatalf("devices: %v", spec.Devices)
	}
	own := spec.Devices[1].ContainerEdits.Mounts
	if len(own) != 1 || own[0].ContainerPath != "/run/simcuda/dev/nvidia1" {
		t.Errorf("GPU 1 has %v", own)
	}
	hides := func(m *cdi.Mount) bool { return m.ContainerPath == "/run/simcuda/dev" && m.Type == "tmpfs" }
	if !slices.ContainsFunc(spec.ContainerEdits.Mounts, hides) {
		t.Error("nothing hides the other nodes")
	}
	if left, _ := filepath.Glob(filepath.Join(folder, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestReplicasOfAGPUAreOneGPU(t *testing.T) {
	plugin := &DevicePlugin{GPUs: []GPU{{"GPU-0", 0}, {"GPU-1", 1}}, Replicas: 3}
	if id := plugin.id(plugin.GPUs[1], 2); id != "GPU-1::2" {
		t.Errorf("a replica is called %s", id)
	}
	request := &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{
		{DevicesIds: []string{"GPU-1::2", "GPU-1::0"}}, {DevicesIds: []string{"GPU-1::1", "GPU-0::1"}},
	}}
	response, err := plugin.Allocate(context.Background(), request)
	if err != nil {
		t.Fatal(err)
	}
	for index, want := range []string{"GPU-1", "GPU-0,GPU-1"} {
		container := response.ContainerResponses[index]
		if got := container.Envs[visibleDevices]; got != want {
			t.Errorf("container %d sees %s, not %s", index, got, want)
		}
		if len(container.CdiDevices) != len(strings.Split(want, ",")) {
			t.Errorf("container %d is given %v", index, container.CdiDevices)
		}
	}
	request.ContainerRequests[0].DevicesIds = []string{"GPU-7"}
	if _, err := plugin.Allocate(context.Background(), request); err == nil {
		t.Error("a GPU that is not there was allocated")
	}
}

// kubelet records who registers with it.
type kubelet struct {
	api.UnimplementedRegistrationServer
	registered chan *api.RegisterRequest
}

func (k kubelet) Register(_ context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	k.registered <- request
	return &api.Empty{}, nil
}

func (k kubelet) serve(t *testing.T, folder string) *grpc.Server {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(folder, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterRegistrationServer(server, k)
	go server.Serve(listener)
	return server
}

func TestItRegistersWithEachNewKubelet(t *testing.T) {
	folder, err := os.MkdirTemp("", "dp") // a short path: sockets have no long ones
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(folder)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	plugin := &DevicePlugin{GPUs: []GPU{{"GPU-0", 0}}, Folder: folder}
	go func() { ended <- plugin.Run(ctx) }()
	there := kubelet{registered: make(chan *api.RegisterRequest)}
	for life := range 3 {
		server := there.serve(t, folder)
		select {
		case request := <-there.registered:
			if request.ResourceName != resource || request.Endpoint != pluginSocket {
				t.Errorf("registered %v", request)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("kubelet %d was not registered with", life)
		}
		server.Stop()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAClaimIsPreparedAsOftenAsAsked(t *testing.T) {
	driver := &DRADriver{GPUs: []GPU{{"GPU-0", 0}, {"GPU-3", 3}}, Node: "node"}
	claim := &resourceapi.ResourceClaim{}
	claim.UID = "1"
	result := func(driver, device string) resourceapi.DeviceRequestAllocationResult {
		return resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: driver, Pool: "node", Device: device}
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	claim.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
		result(driverName, "gpu-3"), result("other.example", "gpu-0"),
	}
	for range 2 {
		prepared, err := driver.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{claim})
		devices := prepared["1"].Devices
		if err != nil || len(devices) != 1 || !slices.Equal(devices[0].CDIDeviceIDs, []string{"nvidia.com/gpu=GPU-3"}) {
			t.Errorf("prepared %v, %v", prepared, err)
		}
	}
	claim.Status.Allocation.Devices.Results[0].Device = "gpu-9"
	prepared, _ := driver.PrepareResourceClaims(context.Background(), []*resourceapi.ResourceClaim{claim})
	if prepared["1"].Err == nil {
		t.Error("a device that is not there was prepared")
	}
}
