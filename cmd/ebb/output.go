package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"github.com/spf13/pflag"
)

// output is how a command prints: for people, or as JSON for programs.
type output string

func (o *output) addFlag(f *pflag.FlagSet) {
	f.VarP(o, "output", "o", "output format: json")
}

// Set implements pflag.Value.
func (o *output) Set(text string) error {
	if text != "json" {
		return fmt.Errorf("%q is not an output format: use json, or omit it", text)
	}
	*o = output(text)
	return nil
}

// String implements pflag.Value.
func (o *output) String() string { return string(*o) }

// Type implements pflag.Value.
func (o *output) Type() string { return "json" }

// print writes the object as JSON, or the text for people.
func (o *output) print(w io.Writer, object any, text func() string) error {
	if *o == "json" {
		if v := reflect.ValueOf(object); v.Kind() == reflect.Slice && v.IsNil() {
			object = []any{} // an empty list is no null
		}
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(object)
	}
	_, err := io.WriteString(w, text())
	return err
}
