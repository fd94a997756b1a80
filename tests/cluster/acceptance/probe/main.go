// Command probe is what the tests run in pods: it tries one thing, says what came of it and ends.
package main

import (
	"fmt"
	"net"
	"os"
	"time"
)

const timeout = 3 * time.Second

func main() {
	if len(os.Args) != 3 {
		fmt.Println("usage: probe dial|resolve|write|serve WHAT")
		os.Exit(2)
	}
	began := time.Now()
	var err error
	switch what := os.Args[2]; os.Args[1] {
	case "dial":
		var c net.Conn
		if c, err = net.DialTimeout("tcp", what, timeout); err == nil {
			_ = c.Close()
			fmt.Println("connected to", what)
		}
	case "resolve":
		var addrs []string
		addrs, err = net.LookupHost(what)
		fmt.Println(addrs)
	case "write":
		err = os.WriteFile(what, []byte("x"), 0o600)
	case "serve":
		var l net.Listener
		if l, err = net.Listen("tcp", what); err == nil {
			fmt.Println("listening on", what)
			for {
				var c net.Conn
				if c, err = l.Accept(); err != nil {
					break
				}
				_ = c.Close()
			}
		}
	}
	fmt.Printf("after %.1f s\n", time.Since(began).Seconds())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
