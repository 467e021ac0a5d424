package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// version is set when the program is linked.
var version = "unknown"

func newVersion() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program",
		Example: "  ebb version\n  ebb version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := struct {
				Version string `json:"version"`
				Go      string `json:"go"`
			}{version, runtime.Version()}
			return out.print(cmd.OutOrStdout(), v, func() string { return fmt.Sprintf("ebb %s (%s)\n", v.Version, v.Go) })
		},
	}
	out.addFlag(cmd.Flags())
	return cmd
}
