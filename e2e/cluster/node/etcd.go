package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

const etcdStart = 30 * time.Second

// etcd on two loopback ports of its own, so that it needs none of its many options here.
func etcd() *cobra.Command {
	command := &cobra.Command{Use: "etcd", SilenceUsage: true}
	folder := command.Flags().String("data-dir", "", "where the data lies")
	command.RunE = func(*cobra.Command, []string) error {
		configuration := embed.NewConfig()
		configuration.Dir = *folder
		// A test cluster's data lives as long as its folder: waiting for the disk proves nothing here.
		configuration.UnsafeNoFsync = true
		server, err := embed.StartEtcd(configuration)
		if err != nil {
			return err
		}
		select {
		case <-server.Server.ReadyNotify():
		case <-time.After(etcdStart):
			return fmt.Errorf("etcd is not ready after %v", etcdStart)
		}
		return <-server.Err()
	}
	return command
}
