// Package node is the process with which a whole cluster ends: it becomes the node, starts the components and reaps.
package node

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"subagents.dev/localcluster/internal/apiclient"
	"subagents.dev/localcluster/internal/component"
	"subagents.dev/localcluster/internal/state"
)

// GateFD is the descriptor on which the process waits for a byte: the host's end of the link is then there.
const GateFD = 3

// apiDeadline is ten times what the API server needs on two busy cores.
const apiDeadline = time.Minute

// The components get none of the environment of whoever typed `up`: its proxies and paths are not the node's.
var environment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}

// Main runs the cluster in dir until it gets SIGTERM, or its gate closes without a byte.
func Main(dir state.Dir) error {
	// Children get a signal when the thread that started them ends, so this one may not end before the process.
	runtime.LockOSThread()
	cluster, err := dir.LoadCluster()
	if err != nil {
		return err
	}
	if cluster == nil {
		return fmt.Errorf("%s holds no cluster", dir)
	}
	if n, err := os.NewFile(GateFD, "gate").Read(make([]byte, 1)); n != 1 {
		return fmt.Errorf("`up` gave up before the cluster began: %w", err)
	}
	if cluster.Mode == state.WithNode {
		if err := enter(dir, cluster.Slot); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	s := &supervisor{dir: dir}
	go s.reap()
	defer s.killAll()
	if err := s.start(component.First(dir, cluster)); err != nil {
		return err
	}
	api, err := apiclient.Open(dir)
	if err != nil {
		return err
	}
	ready, cancel := context.WithTimeout(ctx, apiDeadline)
	err = api.WaitReady(ready)
	cancel()
	if err != nil {
		return err
	}
	logf("the API server is ready")
	if err := s.start(component.Second(dir, cluster)); err != nil {
		return err
	}
	<-ctx.Done()
	logf("told to end")
	return nil
}

// supervisor starts components and records how they end. It restarts none: in a test a component that ended is a
// finding, not to be hidden.
type supervisor struct {
	dir        state.Dir
	mu         sync.Mutex
	components []state.Component
}

func (s *supervisor) start(all []component.Start) error {
	for _, c := range all {
		if err := s.startOne(c); err != nil {
			return fmt.Errorf("start %s: %w", c.Name, err)
		}
	}
	return nil
}

func (s *supervisor) startOne(c component.Start) error {
	log, err := os.OpenFile(s.dir.Log(c.Name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer func() { _ = nothing.Close() }()
	program, argv := c.Program, append([]string{c.Name}, c.Args...)
	if program == "" {
		program = "/proc/self/exe" // also when the node's mounts hide the path it was started by
	}
	// Locked, so that the end of a process that ends at once is recorded after its start.
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := os.StartProcess(program, argv, &os.ProcAttr{
		Dir:   "/",
		Env:   environment,
		Files: []*os.File{nothing, log, log},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return err
	}
	logf("started %s, pid %d", c.Name, p.Pid)
	s.components = append(s.components, state.Component{Name: c.Name, PID: p.Pid})
	return s.dir.SaveComponents(s.components)
}

// reap waits for every child, also for the orphans that come to process 1.
func (s *supervisor) reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for {
		var how syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &how, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 {
			<-ended
			continue
		}
		s.record(pid, how)
	}
}

func (s *supervisor) record(pid int, how syscall.WaitStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.components {
		c := &s.components[i]
		if c.PID != pid || c.Ended != "" {
			continue
		}
		c.Ended = fmt.Sprintf("exit code %d", how.ExitStatus())
		if how.Signaled() {
			c.Ended = fmt.Sprintf("signal %d (%v)", how.Signal(), how.Signal())
		}
		logf("%s ended: %s", c.Name, c.Ended)
		if err := s.dir.SaveComponents(s.components); err != nil {
			logf("cannot record it: %v", err)
		}
	}
}

// killAll is for the cluster without namespaces; process 1 takes all others with it anyway.
func (s *supervisor) killAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.components {
		if c.Ended == "" {
			_ = syscall.Kill(c.PID, syscall.SIGKILL)
		}
	}
}

func logf(format string, a ...any) {
	fmt.Printf("%s %s\n", time.Now().Format("15:04:05.000"), fmt.Sprintf(format, a...))
}
