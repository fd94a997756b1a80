package component

import (
	"context"
	"fmt"
	"net/url"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
)

// etcdQuota is etcd's own advice for a large database; the default of 2 GiB is a limit that tests must not meet.
const etcdQuota = 8 << 30

func etcdCommand() *cobra.Command {
	var dir string
	var clientPort, peerPort int
	c := &cobra.Command{Use: "etcd", SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		client, peer := localURL(clientPort), localURL(peerPort)
		cfg := embed.NewConfig()
		cfg.Dir = dir
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
		cfg.LogLevel = "warn"
		cfg.QuotaBackendBytes = etcdQuota
		// The data ends with the cluster, so a write need not survive a crash of the machine.
		cfg.UnsafeNoFsync = true
		// Left at its zero value each request counts as slow and is logged.
		cfg.WarningUnaryRequestDuration = embed.DefaultWarningUnaryRequestDuration
		server, err := embed.StartEtcd(cfg)
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		select {
		case <-ctx.Done():
			server.Close()
			return nil
		case err := <-server.Err():
			return err
		}
	}}
	c.Flags().StringVar(&dir, "data-dir", "", "data directory")
	c.Flags().IntVar(&clientPort, "client-port", 2379, "port on 127.0.0.1 for the API server")
	c.Flags().IntVar(&peerPort, "peer-port", 2380, "port on 127.0.0.1 for other members; there are none")
	return c
}

func localURL(port int) url.URL {
	return url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}
}
