package lifecycle

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"subagents.dev/localcluster/internal/state"
)

// Foreground is Up, then Down as soon as ctx is done, the parent process ended or, if standard input is a pipe, its
// other end was closed. Killed itself, it takes the cluster along, and the next command in dir removes the rest.
func Foreground(ctx context.Context, dir state.Dir, o Options) error {
	// The cluster is to die with the thread that started it, which therefore must not end before the process.
	runtime.LockOSThread()
	parent := os.Getppid()
	o.DieWithParent = true
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go watchParent(ctx, end, parent)
	if isPipe(os.Stdin) {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			end(fmt.Errorf("standard input ended"))
		}()
	}
	if err := Up(ctx, dir, o); err != nil {
		return err
	}
	fmt.Println("ready; the cluster ends with this process")
	<-ctx.Done()
	fmt.Printf("ending: %v\n", context.Cause(ctx))
	return Down(dir)
}

func watchParent(ctx context.Context, end context.CancelCauseFunc, parent int) {
	// The kernel's own notice of a parent's death is of the parent's thread, which may end long before the process.
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if os.Getppid() != parent {
				end(fmt.Errorf("the parent process %d ended", parent))
				return
			}
		}
	}
}

// isPipe: a terminal, a file or /dev/null says nothing about who is at the other end.
func isPipe(f *os.File) bool {
	fi, err := f.Stat()
	return err == nil && fi.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0
}
