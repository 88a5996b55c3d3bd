package standin

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const driverName = "gpu.nvidia.com"

// DRADriver offers a machine's GPUs to ResourceClaims under the name of NVIDIA's DRA driver. Several pods may share a
// claim, and with it its GPUs.
type DRADriver struct {
	GPUs   []GPU
	Node   string
	Client kubernetes.Interface
}

var _ kubeletplugin.DRAPlugin = (*DRADriver)(nil)

// Run serves until the context ends.
func (d *DRADriver) Run(ctx context.Context) error {
	for _, folder := range []string{kubeletplugin.KubeletRegistryDir, filepath.Join(kubeletplugin.KubeletPluginsDir, driverName)} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return err
		}
	}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.KubeClient(d.Client), kubeletplugin.NodeName(d.Node),
		kubeletplugin.DriverName(driverName), kubeletplugin.HealthService(false))
	if err != nil {
		return err
	}
	defer helper.Stop()
	if err := helper.PublishResources(ctx, d.resources()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func deviceName(gpu GPU) string { return fmt.Sprintf("gpu-%d", gpu.Minor) }

func (d *DRADriver) resources() resourceslice.DriverResources {
	var devices []resourceapi.Device
	for _, gpu := range d.GPUs {
		kind := "gpu"
		devices = append(devices, resourceapi.Device{
			Name: deviceName(gpu),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"uuid": {StringValue: &gpu.UUID},
				"type": {StringValue: &kind},
			},
		})
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.Node: pool}}
}

// PrepareResourceClaims names the CDI devices of what the scheduler chose. Nothing is kept, so it may be asked again.
func (d *DRADriver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = d.prepare(claim)
	}
	return results, nil
}

func (d *DRADriver) prepare(claim *resourceapi.ResourceClaim) (result kubeletplugin.PrepareResult) {
	for _, chosen := range claim.Status.Allocation.Devices.Results {
		if chosen.Driver != driverName {
			continue
		}
		gpu, found := d.gpu(chosen.Device)
		if !found {
			return kubeletplugin.PrepareResult{Err: fmt.Errorf("there is no device %s in pool %s", chosen.Device, chosen.Pool)}
		}
		result.Devices = append(result.Devices, kubeletplugin.Device{
			Requests: []string{chosen.Request}, PoolName: chosen.Pool, DeviceName: chosen.Device,
			CDIDeviceIDs: []string{cdiName(gpu)},
		})
	}
	slog.Info("prepared", "claim", claim.Namespace+"/"+claim.Name, "devices", len(result.Devices))
	return result
}

func (d *DRADriver) gpu(name string) (GPU, bool) {
	for _, gpu := range d.GPUs {
		if deviceName(gpu) == name {
			return gpu, true
		}
	}
	return GPU{}, false
}

// UnprepareResourceClaims has nothing to undo.
func (d *DRADriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		slog.Info("unprepared", "claim", claim.String())
		results[claim.UID] = nil
	}
	return results, nil
}

// HandleError writes what went wrong in the background, such as a slice that the API refuses.
func (d *DRADriver) HandleError(_ context.Context, err error, message string) {
	slog.Error(message, "error", err)
}

// WatchHealthStatus says that health is not told.
func (d *DRADriver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}
