// Package component holds the programs of a cluster, all linked into this one binary, and how each is started.
package component

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"

	// What upstream's own main packages import: log formats and metrics of the build.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var commands = map[string]func() *cobra.Command{
	"etcd":                    etcdCommand,
	"coredns":                 corednsCommand,
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	// The kubelet sets up its own signal handling and panics if it is given a context that already has it.
	"kubelet": func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

// Is says whether name is one of the programs linked into this binary.
func Is(name string) bool {
	_, ok := commands[name]
	return ok
}

// Run becomes the component name with the given arguments; it returns the exit code.
func Run(name string, args []string) int {
	os.Args = append([]string{name}, args...)
	return cli.Run(commands[name]())
}
