// One binary, several commands, chosen by the name it is called with: what a test node needs of Kubernetes, linked
// once. The parts share most of their code, so together they are a third of the size they would be apart.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	helm "helm.sh/helm/v4/pkg/cmd"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var commands = map[string]func() (*cobra.Command, error){
	"await-cluster":           plain(await),
	"etcd":                    plain(etcd),
	"gpu-device-plugin":       plain(devicePlugin),
	"gpu-dra-driver":          plain(draDriver),
	"slot-csi-driver":         plain(csiDriver),
	"helm":                    helmCommand,
	"kube-apiserver":          plain(apiserver.NewAPIServerCommand),
	"kube-controller-manager": plain(manager.NewControllerManagerCommand),
	"kube-scheduler":          plain(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 plain(kubectl.NewDefaultKubectlCommand),
	"kubelet":                 plain(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
}

func plain(make func() *cobra.Command) func() (*cobra.Command, error) {
	return func() (*cobra.Command, error) { return make(), nil }
}

func helmCommand() (*cobra.Command, error) {
	kube.ManagedFieldsManager = "helm" // as Helm's own main says it, whatever this file is called
	return helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
}

func main() {
	name := filepath.Base(os.Args[0])
	make, known := commands[name]
	if !known { // its own name, above all: then it says which others it has
		for _, name := range slices.Sorted(maps.Keys(commands)) {
			fmt.Println(name)
		}
		return
	}
	command, err := make()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(cli.Run(command))
}
