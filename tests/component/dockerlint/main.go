// Command dockerlint reads Dockerfiles as BuildKit does and prints what its linter finds.
package main

import (
	"fmt"
	"os"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func main() {
	found := 0
	for _, path := range os.Args[1:] {
		file, err := os.Open(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		result, err := parser.Parse(file)
		file.Close()
		if err != nil {
			fmt.Printf("%s: %v\n", path, err)
			found++
			continue
		}
		warn := func(rule, description, url, message string, location []parser.Range) {
			line := 0
			if len(location) > 0 {
				line = location[0].Start.Line
			}
			fmt.Printf("%s:%d: %s: %s\n", path, line, rule, message)
			found++
		}
		for _, warning := range result.Warnings {
			warn("Parser", "", "", warning.Short, nil)
		}
		if _, _, err := instructions.Parse(result.AST, linter.New(&linter.Config{Warn: warn})); err != nil {
			fmt.Printf("%s: %v\n", path, err)
			found++
		}
	}
	if found > 0 {
		os.Exit(1)
	}
}
