package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	askAgainAfter  = 50 * time.Millisecond
	requestTimeout = 5 * time.Second
)

// await-cluster waits for the API, or for a node that can run pods. One process that asks again and again is far
// cheaper than a kubectl for each question.
func await() *cobra.Command {
	command := &cobra.Command{Use: "await-cluster", SilenceUsage: true}
	kubeconfig := command.Flags().String("kubeconfig", "", "how to reach the API")
	node := command.Flags().String("node", "", "wait for this node as well, and for what its pods need")
	bootID := command.Flags().String("boot-id", "", "take the node's word only if it is from this boot")
	timeout := command.Flags().Duration("timeout", time.Minute, "how long to wait")
	command.RunE = func(*cobra.Command, []string) error {
		configuration, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
		if err != nil {
			return err
		}
		configuration.Timeout = requestTimeout
		configuration.QPS = -1
		client, err := kubernetes.NewForConfig(configuration)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), *timeout)
		defer cancel()
		steps := []func(context.Context, *kubernetes.Clientset) error{apiIsReady}
		if *node != "" {
			steps = append(steps, accountIsThere, func(ctx context.Context, client *kubernetes.Clientset) error {
				return nodeIsReady(ctx, client, *node, *bootID)
			})
		}
		for _, step := range steps {
			if err := until(ctx, client, step); err != nil {
				return fmt.Errorf("not ready within %v: %w", *timeout, err)
			}
		}
		return nil
	}
	return command
}

// until repeats a step until it succeeds; the error is the last one.
func until(ctx context.Context, client *kubernetes.Clientset, step func(context.Context, *kubernetes.Clientset) error) error {
	for {
		err := step(ctx, client)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(askAgainAfter):
		}
	}
}

func apiIsReady(ctx context.Context, client *kubernetes.Clientset) error {
	return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// Pods are refused as long as their namespace has no account for them.
func accountIsThere(ctx context.Context, client *kubernetes.Clientset) error {
	_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", meta.GetOptions{})
	return err
}

func nodeIsReady(ctx context.Context, client *kubernetes.Clientset, name, bootID string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return err
	}
	if seen := node.Status.NodeInfo.BootID; bootID != "" && seen != bootID {
		return fmt.Errorf("node %s speaks of boot %q, not of %q", name, seen, bootID)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == core.NodeReady && condition.Status == core.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not Ready: %v", name, node.Status.Conditions)
}
