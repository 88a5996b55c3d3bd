package standin

import (
	"fmt"
	"os"
	"path/filepath"

	cdi "tags.cncf.io/container-device-interface/specs-go"
)

// Machine is where the GPUs are: what gives a container some of them, and no other.
type Machine interface {
	// GPUs lists them all.
	GPUs() ([]GPU, error)
	// Common is what every container with a GPU is given.
	Common() (cdi.ContainerEdits, error)
	// Own is what a container with this GPU is given.
	Own(gpu GPU) cdi.ContainerEdits
}

// Where programs look for the driver's library without being told.
const libraries = "/usr/lib/x86_64-linux-gnu"

func readOnly(host, container string) *cdi.Mount {
	return &cdi.Mount{HostPath: host, ContainerPath: container, Options: []string{"ro", "nosuid", "nodev", "bind"}}
}

// ---- simulated ----

// Simulated is a machine of simcuda. Its folder has `machine`, the rendezvous directory, and `driver/libcuda.so.1`.
type Simulated struct{ Folder string }

// Where a container finds the simulated machine.
const simulatedPlace = "/run/simcuda"

// GPUs lists what the machine was made with.
func (s Simulated) GPUs() ([]GPU, error) {
	return gpusOf(filepath.Join(s.Folder, "machine/proc"))
}

// Common gives the rendezvous directory, but an empty folder in the place of the one with the device nodes.
func (s Simulated) Common() (cdi.ContainerEdits, error) {
	return cdi.ContainerEdits{
		Env: []string{"SIMCUDA_DIR=" + simulatedPlace},
		Mounts: []*cdi.Mount{
			{HostPath: filepath.Join(s.Folder, "machine"), ContainerPath: simulatedPlace, Options: []string{"rw", "nosuid", "nodev", "bind"}},
			{HostPath: "tmpfs", ContainerPath: simulatedPlace + "/dev", Type: "tmpfs", Options: []string{"nosuid", "noexec", "nodev", "mode=755", "size=64k"}},
			readOnly(filepath.Join(s.Folder, "driver/libcuda.so.1"), libraries+"/libcuda.so.1"),
		},
	}, nil
}

// Own gives the GPU's node, which is a regular file.
func (s Simulated) Own(gpu GPU) cdi.ContainerEdits {
	node := fmt.Sprintf("dev/nvidia%d", gpu.Minor)
	return cdi.ContainerEdits{Mounts: []*cdi.Mount{
		{HostPath: filepath.Join(s.Folder, "machine", node), ContainerPath: filepath.Join(simulatedPlace, node), Options: []string{"rw", "nosuid", "nodev", "bind"}},
	}}
}

// ---- real ----

// Real is this machine, with NVIDIA's driver.
type Real struct {
	// Driver is the folder of the driver's libraries for programs.
	Driver string
}

// What every container with a GPU needs of the driver, beside the GPU's own node.
var (
	commonNodes   = []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}
	realLibraries = []string{"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"}
)

// GPUs lists what the driver has.
func (Real) GPUs() ([]GPU, error) { return gpusOf("/proc") }

// Common gives the driver's own nodes, and those of its libraries that are there; libcuda must be.
func (r Real) Common() (cdi.ContainerEdits, error) {
	var edits cdi.ContainerEdits
	for _, node := range commonNodes {
		if _, err := os.Stat("/dev/" + node); err == nil {
			edits.DeviceNodes = append(edits.DeviceNodes, &cdi.DeviceNode{Path: "/dev/" + node})
		}
	}
	for index, library := range realLibraries {
		// The file itself, because the link may lead out of what is mounted.
		file, err := filepath.EvalSymlinks(filepath.Join(r.Driver, library))
		if err != nil && index == 0 {
			return edits, fmt.Errorf("find the driver: %w", err)
		}
		if err == nil {
			edits.Mounts = append(edits.Mounts, readOnly(file, libraries+"/"+library))
		}
	}
	return edits, nil
}

// Own gives the GPU's node.
func (Real) Own(gpu GPU) cdi.ContainerEdits {
	return cdi.ContainerEdits{DeviceNodes: []*cdi.DeviceNode{{Path: fmt.Sprintf("/dev/nvidia%d", gpu.Minor)}}}
}
