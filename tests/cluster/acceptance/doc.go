// Package acceptance tries the built program on this machine. Its tests need root, the node's packages and a minute:
// they have the build tag `acceptance`, and `make test-cluster` runs them with
//
//	LOCALCLUSTER  path of the program
//	MKIMAGE       path of the image builder
package acceptance
