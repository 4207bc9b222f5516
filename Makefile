.PHONY: build
build:
	swift build
