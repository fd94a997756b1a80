// Command pause is the first process of every pod sandbox: it holds the pod's namespaces and reaps what is orphaned in
// them, until it is told to end.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// The kernel reaps the children of a process that ignores this signal.
	signal.Ignore(syscall.SIGCHLD)
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
