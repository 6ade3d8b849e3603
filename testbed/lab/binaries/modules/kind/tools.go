//go:build tools

// Package tools pins the command that is built from this module.
package tools

import _ "sigs.k8s.io/kind"
