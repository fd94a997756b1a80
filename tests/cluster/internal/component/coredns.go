package component

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind" // each directive of the Corefile is a plugin
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/template"
	"github.com/spf13/cobra"
)

func corednsCommand() *cobra.Command {
	return &cobra.Command{Use: "coredns", DisableFlagParsing: true, Run: func(*cobra.Command, []string) { coremain.Run() }}
}
