//go:build tools

// Package tools pins the linter of workflow files that a test builds.
package tools

import _ "github.com/rhysd/actionlint/cmd/actionlint"
