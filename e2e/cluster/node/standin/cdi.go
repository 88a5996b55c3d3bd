package standin

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	cdi "tags.cncf.io/container-device-interface/specs-go"
)

const (
	cdiKind    = "nvidia.com/gpu"
	cdiVersion = "0.5.0" // the lowest that has all that is used
	cdiFile    = "nvidia.com-gpu.json"
)

// cdiName is what a container is given the GPU by.
func cdiName(gpu GPU) string { return cdiKind + "=" + gpu.UUID }

// WriteSpec tells the container runtime what each GPU is, as `nvidia-ctk cdi generate` does. It may be written again at any
// time, and by several.
func WriteSpec(machine Machine, folder string) ([]GPU, error) {
	gpus, err := machine.GPUs()
	if err != nil {
		return nil, err
	}
	common, err := machine.Common()
	if err != nil {
		return nil, err
	}
	spec := cdi.Spec{Version: cdiVersion, Kind: cdiKind, ContainerEdits: common}
	for _, gpu := range gpus {
		spec.Devices = append(spec.Devices, cdi.Device{Name: gpu.UUID, ContainerEdits: machine.Own(gpu)})
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	partial := filepath.Join(folder, fmt.Sprintf(".%s.%d", cdiFile, os.Getpid()))
	if err := os.WriteFile(partial, text, 0o644); err != nil {
		return nil, err
	}
	return gpus, os.Rename(partial, filepath.Join(folder, cdiFile))
}
