// containerd, and `ctr` for what is called by that name: they share nearly all of their code. The shim is a program of
// its own, because it would otherwise find containerd's plugins in its registry.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	"github.com/containerd/containerd/v2/cmd/containerd/command"
	"github.com/containerd/containerd/v2/cmd/ctr/app"
	"github.com/urfave/cli/v3"
)

func main() {
	name := filepath.Base(os.Args[0])
	commands := map[string]func() *cli.Command{"containerd": command.App, "ctr": app.New}
	make, known := commands[name]
	if !known {
		fmt.Fprintf(os.Stderr, "call me containerd or ctr, not %s\n", name)
		os.Exit(2)
	}
	if err := make().Run(context.Background(), os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
