// Command mkimage builds container images from files and folders, without a container engine and without a registry.
// The same input gives the same image, byte for byte.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/pflag"
)

const usage = `usage: mkimage --ref NAME:TAG [-o ARCHIVE] [--push] [options] SRC[:DST]... [+ SRC[:DST]...]...

Each SRC is a file or a folder; + begins a new layer. DST is where it goes in the image: a folder's content goes below it
(default /), a file becomes it, or goes into it if it ends with / (default /).

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var ref, out string
	var push, insecure bool
	var cfg v1.Config
	f := pflag.NewFlagSet("mkimage", pflag.ContinueOnError)
	f.Usage = func() { fmt.Fprint(os.Stderr, usage, f.FlagUsages()) }
	f.StringVar(&ref, "ref", "", "name of the image, with its tag")
	f.StringVarP(&out, "output", "o", "", "write an archive here, for `ctr images import`, `docker load` and the like")
	f.BoolVar(&push, "push", false, "push the image to the registry that --ref names, with the credentials of ~/.docker/config.json")
	f.BoolVar(&insecure, "insecure", false, "push without TLS")
	// Arrays, not lists: an argument may hold a comma.
	f.StringArrayVar(&cfg.Entrypoint, "entrypoint", nil, "program to run, then its fixed arguments, one flag each")
	f.StringArrayVar(&cfg.Cmd, "cmd", nil, "default arguments, one flag each")
	f.StringArrayVar(&cfg.Env, "env", nil, "NAME=VALUE; PATH has the usual value unless it is given")
	f.StringVar(&cfg.User, "user", "", "user to run as: UID or UID:GID")
	f.StringVar(&cfg.WorkingDir, "workdir", "", "working directory")
	architecture := f.String("architecture", runtime.GOARCH, "what the programs in the image were built for, as Go names it")
	if err := f.Parse(args); err != nil {
		return err
	}
	if ref == "" || f.NArg() == 0 {
		f.Usage()
		return fmt.Errorf("--ref and at least one SRC are needed")
	}
	if out == "" && !push {
		return fmt.Errorf("nothing to do: give -o ARCHIVE, --push or both")
	}
	layers, err := parseLayers(f.Args())
	if err != nil {
		return err
	}
	b := build{ref: ref, config: cfg, architecture: *architecture, layers: layers}
	if out != "" {
		if err := b.archive(out); err != nil {
			return err
		}
	}
	if push {
		return b.push(ctx, insecure)
	}
	return nil
}
