// A program with a connection to an address of IPv4: 0, or the number of the error.
package main

import (
	"os"
	"syscall"
)

func number(text string) int {
	n := 0
	for _, c := range text {
		n = n*10 + int(c-'0')
	}
	return n
}

func main() {
	to := syscall.SockaddrInet4{Port: number(os.Args[2])}
	at := 0
	for _, c := range os.Args[1] {
		if c == '.' {
			at++
		} else {
			to.Addr[at] = to.Addr[at]*10 + byte(c-'0')
		}
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		err = syscall.Connect(fd, &to)
	}
	if errno, ok := err.(syscall.Errno); ok {
		os.Exit(int(errno))
	}
}
