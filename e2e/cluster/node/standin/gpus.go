// Package standin hands out GPUs as NVIDIA's device plugin and DRA driver do, for tests: simulated ones on a machine
// that has none, or real ones.
package standin

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// GPU is what the driver's tree under /proc says of one.
type GPU struct {
	UUID  string
	Minor int
}

// gpusOf reads `<root>/driver/nvidia/gpus/<bus>/information`.
func gpusOf(root string) ([]GPU, error) {
	pattern := filepath.Join(root, "driver/nvidia/gpus/*/information")
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	var gpus []GPU
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		gpu, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		gpus = append(gpus, gpu)
	}
	if len(gpus) == 0 {
		return nil, fmt.Errorf("there is no GPU: no file is called %s", pattern)
	}
	slices.SortFunc(gpus, func(a, b GPU) int { return cmp.Compare(a.Minor, b.Minor) })
	return gpus, nil
}

func parse(information string) (GPU, error) {
	gpu := GPU{Minor: -1}
	for line := range strings.Lines(information) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
		case "GPU UUID":
			gpu.UUID = value
		case "Device Minor":
			minor, err := strconv.Atoi(value)
			if err != nil {
				return GPU{}, fmt.Errorf("the minor number is %q", value)
			}
			gpu.Minor = minor
		}
	}
	if gpu.UUID == "" || gpu.Minor < 0 {
		return GPU{}, fmt.Errorf("neither UUID nor minor number may be missing: %q", information)
	}
	return gpu, nil
}
