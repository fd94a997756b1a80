//go:build acceptance

package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"subagents.dev/localcluster/internal/slot"
)

// startAndWait starts cmd and waits until it says text; the result is what it said so far.
func startAndWait(t *testing.T, cmd *exec.Cmd, text string) func() string {
	t.Helper()
	var mu sync.Mutex
	var said bytes.Buffer
	out := func() string {
		mu.Lock()
		defer mu.Unlock()
		return said.String()
	}
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := r.Read(b)
			mu.Lock()
			said.Write(b[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, fmt.Sprintf("%q from %v", text, cmd.Args), func(context.Context) error {
		if !strings.Contains(out(), text) {
			return fmt.Errorf("it said %q", out())
		}
		return nil
	})
	return out
}

func TestForegroundEndsWithItsStandardInput(t *testing.T) {
	before := traces(t)
	c := newCluster(t)
	fg := exec.Command(tool(t, "LOCALCLUSTER"), "--dir", c.dir, "up", "--foreground", "--apiserver-only")
	in, err := fg.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out := startAndWait(t, fg, "ready;")
	s := c.slot()
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fg.Wait(); err != nil {
		t.Errorf("%v; it said %s", err, out())
	}
	requireNoTraces(t, before, []slot.Slot{s}, c.dir)
}

func TestAPIServerAloneAuthorizesIssuesTokensAndAudits(t *testing.T) {
	ctx := context.Background()
	before := traces(t)
	c := newCluster(t)
	c.run("up", "--apiserver-only")
	admin := c.client()

	// Without controllers nobody makes the default account.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "someone"}}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request := func(audiences ...string) string {
		tr, err := admin.CoreV1().ServiceAccounts("default").CreateToken(ctx, "someone",
			&authnv1.TokenRequest{Spec: authnv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return tr.Status.Token
	}
	token := request("some.audience")
	for audience, want := range map[string]bool{"some.audience": true, "another.audience": false} {
		review, err := admin.AuthenticationV1().TokenReviews().Create(ctx,
			&authnv1.TokenReview{Spec: authnv1.TokenReviewSpec{Token: token, Audiences: []string{audience}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if review.Status.Authenticated != want {
			t.Errorf("token for some.audience reviewed for %s: %+v", audience, review.Status)
		}
	}

	// Someone without a role gets nothing, and the audit log says so.
	if _, err := asBearer(t, c, request()).CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list of secrets without a role: %v", err)
	}
	found := false
	for _, e := range auditEvents(t, c) {
		if e.User.Username == "system:serviceaccount:default:someone" && e.Annotations["authorization.k8s.io/decision"] == "forbid" {
			found = true
		}
		if e.Stage == "RequestReceived" {
			t.Fatal("the stage RequestReceived is logged")
		}
	}
	if !found {
		t.Error("the audit log does not hold the refusal")
	}

	s := c.slot()
	c.run("down")
	requireNoTraces(t, before, []slot.Slot{s}, c.dir)
}

func TestControllersRunBesideAnAPIServerAlone(t *testing.T) {
	c := newCluster(t)
	c.run("up", "--apiserver-only", "--controllers", "serviceaccount-controller,namespace-controller")
	ns := c.client().CoreV1().Namespaces()
	if _, err := ns.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "default service account", func(ctx context.Context) error {
		_, err := c.client().CoreV1().ServiceAccounts("x").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err := ns.Delete(context.Background(), "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of the namespace", func(ctx context.Context) error {
		if _, err := ns.Get(ctx, "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %v", err)
		}
		return nil
	})
	c.run("down")
}

func TestAClusterOfAnotherKindIsNotReplaced(t *testing.T) {
	c := newCluster(t)
	c.run("up", "--apiserver-only")
	was := c.root()
	for _, args := range [][]string{{"up"}, {"up", "--apiserver-only", "--controllers", "namespace-controller"}} {
		if out, err := c.try(args...); err == nil || !strings.Contains(out, "end it first") {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
	c.run("status")
	if c.root() != was {
		t.Error("the cluster was replaced")
	}
	c.run("down")
}

func TestAComponentThatEndedMakesTheClusterUnhealthyAndUpReplacesIt(t *testing.T) {
	c := newCluster(t)
	c.run("up", "--apiserver-only")
	var components []struct {
		Name string
		PID  int
	}
	c.read("components.json", &components)
	for _, p := range components {
		if p.Name == "etcd" {
			if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "bad status", func(context.Context) error {
		out, err := c.try("status")
		if err == nil || !strings.Contains(out, "etcd ended: signal 9") {
			return fmt.Errorf("%v, %s", err, out)
		}
		return nil
	})
	was := c.root()
	c.run("up", "--apiserver-only")
	if c.root() == was {
		t.Error("the broken cluster was kept")
	}
	c.run("status")
	c.run("down")
}

func asBearer(t *testing.T, c *cluster, token string) *kubernetes.Clientset {
	t.Helper()
	admin, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(admin)
	cfg.BearerToken = token
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

type auditEvent struct {
	Stage       string
	User        struct{ Username string }
	Annotations map[string]string
}

func auditEvents(t *testing.T, c *cluster) []auditEvent {
	t.Helper()
	f, err := os.Open(filepath.Join(c.dir, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []auditEvent
	for d := json.NewDecoder(f); ; {
		var e auditEvent
		if err := d.Decode(&e); err == io.EOF {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
}
