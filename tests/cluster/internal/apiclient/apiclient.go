// Package apiclient asks a cluster's API server, as its administrator, whether things are as they should be.
package apiclient

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"subagents.dev/localcluster/internal/config"
	"subagents.dev/localcluster/internal/state"
)

// callTimeout is for one request; an API server that is well answers within milliseconds.
const callTimeout = 3 * time.Second

// interval between two looks at something that takes 0.5 to 5 s to come.
const interval = 50 * time.Millisecond

// Client is a client with the administrator's rights.
type Client struct{ clientset kubernetes.Interface }

// Open reads the administrator's kubeconfig of the cluster in dir.
func Open(dir state.Dir) (*Client, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", dir.Kubeconfig())
	if err != nil {
		return nil, err
	}
	cfg.Timeout = callTimeout
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{clientset: cs}, nil
}

// Ready returns nil if the API server says it is ready and has made its default namespace.
func (c *Client) Ready(ctx context.Context) error {
	if _, err := c.clientset.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	_, err := c.clientset.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	return err
}

// NodeReady returns nil if the node takes pods and the default service account is there for them.
func (c *Client) NodeReady(ctx context.Context) error {
	node, err := c.clientset.CoreV1().Nodes().Get(ctx, config.NodeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(node.Spec.Taints) > 0 {
		return fmt.Errorf("node %s is tainted: %v", node.Name, node.Spec.Taints)
	}
	for _, cond := range node.Status.Conditions {
		if cond.Type == corev1.NodeReady && cond.Status != corev1.ConditionTrue {
			return fmt.Errorf("node %s is not ready: %s", node.Name, cond.Message)
		}
	}
	_, err = c.clientset.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
	return err
}

// WaitReady waits for Ready.
func (c *Client) WaitReady(ctx context.Context) error { return Wait(ctx, c.Ready) }

// WaitNodeReady waits for NodeReady.
func (c *Client) WaitNodeReady(ctx context.Context) error { return Wait(ctx, c.NodeReady) }

// Wait asks until the answer is nil; when ctx ends first it returns the last other answer.
func Wait(ctx context.Context, ask func(context.Context) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last seen: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
