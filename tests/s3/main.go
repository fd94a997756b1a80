// Program s3 is an S3 server for tests: one bucket, in memory, on a port of its own. It prints its address, and ends when its
// standard input does, so that no test leaves one behind.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

const (
	bucket    = "sessions"
	accessKey = "the-key-of-the-tests"
	// Whoever has it may change nothing.
	readingKey = "the-key-that-only-reads"
)

func main() {
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Printf("http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, known(gofakes3.New(backend).Server())))
}

// known lets only those in who sign with the key of the tests. Whether the signature is right is not looked at.
func known(server http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		signed := r.Header.Get("Authorization")
		with := func(key string) bool { return strings.HasPrefix(signed, "AWS4-HMAC-SHA256 Credential="+key+"/") }
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		switch {
		case with(accessKey) || with(readingKey) && reads:
			server.ServeHTTP(w, r)
		case with(readingKey):
			refuse(w, "AccessDenied", "it only reads")
		default:
			refuse(w, "InvalidAccessKeyId", "no such key")
		}
	})
}

func refuse(w http.ResponseWriter, code, why string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(http.StatusForbidden)
	_, _ = io.WriteString(w, "<Error><Code>"+code+"</Code><Message>"+why+"</Message></Error>")
}
