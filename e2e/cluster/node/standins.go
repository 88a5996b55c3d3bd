package main

import (
	"context"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpu-handoff.io/e2e/node/standin"
)

// Which GPUs a stand-in hands out; the same for all of them.
type machineFlags struct {
	simulated, driver string
	specs             string
}

func (f *machineFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.simulated, "simulated", "", "folder of a simulated machine: machine/ and driver/libcuda.so.1")
	flags.StringVar(&f.driver, "driver", "", "folder of the real driver's libraries, for this machine's own GPUs")
	flags.StringVar(&f.specs, "cdi", "/run/cdi", "where the container runtime looks for CDI specs")
	command.MarkFlagsOneRequired("simulated", "driver")
	command.MarkFlagsMutuallyExclusive("simulated", "driver")
}

func (f *machineFlags) gpus() ([]standin.GPU, error) {
	var machine standin.Machine = standin.Simulated{Folder: f.simulated}
	if f.driver != "" {
		machine = standin.Real{Driver: f.driver}
	}
	gpus, err := standin.WriteSpec(machine, f.specs)
	if err != nil {
		return nil, fmt.Errorf("look at the GPUs: %w", err)
	}
	return gpus, nil
}

func devicePlugin() *cobra.Command {
	var machine machineFlags
	command := &cobra.Command{Use: "gpu-device-plugin", SilenceUsage: true}
	machine.add(command)
	replicas := command.Flags().Int("replicas", 1, "how many devices each GPU is offered as (time-slicing)")
	command.RunE = func(*cobra.Command, []string) error {
		gpus, err := machine.gpus()
		if err != nil {
			return err
		}
		plugin := &standin.DevicePlugin{GPUs: gpus, Replicas: *replicas, Folder: v1beta1.DevicePluginPath}
		return untilSignalled(plugin.Run)
	}
	return command
}

func draDriver() *cobra.Command {
	var machine machineFlags
	command := &cobra.Command{Use: "gpu-dra-driver", SilenceUsage: true}
	machine.add(command)
	kubeconfig := command.Flags().String("kubeconfig", "", "how to reach the API")
	node := command.Flags().String("node", "", "the node's name")
	command.RunE = func(*cobra.Command, []string) error {
		gpus, err := machine.gpus()
		if err != nil {
			return err
		}
		configuration, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(configuration)
		if err != nil {
			return err
		}
		return untilSignalled((&standin.DRADriver{GPUs: gpus, Node: *node, Client: client}).Run)
	}
	return command
}

func csiDriver() *cobra.Command {
	command := &cobra.Command{Use: "slot-csi-driver", SilenceUsage: true}
	node := command.Flags().String("node", "", "the node's name")
	slots := command.Flags().String("slots", "/run/slots", "where the pods' folders lie")
	command.RunE = func(*cobra.Command, []string) error {
		driver := &standin.CSIDriver{Node: *node, Slots: *slots, Kubelet: "/var/lib/kubelet"}
		return untilSignalled(driver.Run)
	}
	return command
}

func untilSignalled(run func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return run(ctx)
}
