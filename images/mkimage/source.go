package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
)

// source is one SRC[:DST]; dst is absolute in the image.
type source struct{ src, dst string }

// layerSeparator stands between the sources of two layers.
const layerSeparator = "+"

func parseLayers(args []string) ([][]source, error) {
	var layers [][]source
	var current []source
	flush := func() error {
		if len(current) == 0 {
			return errors.New("a layer without a source")
		}
		layers, current = append(layers, current), nil
		return nil
	}
	for _, a := range args {
		if a == layerSeparator {
			if err := flush(); err != nil {
				return nil, err
			}
			continue
		}
		s, err := parseSource(a)
		if err != nil {
			return nil, err
		}
		current = append(current, s)
	}
	return layers, flush()
}

func parseSource(arg string) (source, error) {
	src, dst, given := strings.Cut(arg, ":")
	fi, err := os.Stat(src)
	if err != nil {
		return source{}, err
	}
	if !given || dst == "" {
		dst = "/"
	}
	if !strings.HasPrefix(dst, "/") {
		return source{}, fmt.Errorf("%s: the place in the image must begin with /", arg)
	}
	if !fi.IsDir() && strings.HasSuffix(dst, "/") {
		dst += path.Base(src)
	}
	return source{src: src, dst: path.Clean(dst)}, nil
}
